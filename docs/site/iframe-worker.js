// A page that was opened as a file may start no worker, in which the site's search would run: a
// hidden frame of the page stands in for one.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((done, failed) => {
        const script = inner.document.createElement("script");
        script.onload = done;
        script.onerror = failed;
        script.src = url;
        inner.document.head.append(script);
      });
      this.inner = inner;
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
