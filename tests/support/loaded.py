"""The program called as subprocess.run would, but that its libraries are loaded once for all calls
of a test: a process that has them waits before `main`, and each call is a fork of it (loaded.cpp).
Only what a call does while it loads is not its own: calls that this could change start the program,
as all do where a sanitizer watches."""
import atexit
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import threading

BIN = os.environ["MESHWRIGHT_BIN"]
LIBRARY = os.environ.get("MESHWRIGHT_LOADED")
# Variables that the program reads when it wants them, and no library while it is loaded.
LATE = re.compile(r"MESHWRIGHT(_\w+)?|XDG_\w+|HOME|PATH|PYTHONPATH|TMPDIR|COLUMNS|SLURM_\w+|RANK|WORLD_SIZE")
of_thread = threading.local()


def inherited(environment):
    """What a process has of the one that starts it."""
    early = {name: value for name, value in environment.items() if not LATE.fullmatch(name)}
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    return early, os.sched_getaffinity(0), limits


class Loaded:
    def __init__(self, environment):
        self.socket, other = socket.socketpair()
        with other:
            self.process = subprocess.Popen(
                [BIN], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[other.fileno()],
                env={**environment, "LD_PRELOAD": LIBRARY, "LOADED_SOCKET": str(other.fileno())})
        atexit.register(self.end)

    def end(self):
        self.socket.close()
        self.process.wait()

    def number(self):
        found = self.socket.recv(4, socket.MSG_WAITALL)
        if len(found) != 4:
            raise RuntimeError("the program that has its libraries loaded is gone")
        return struct.unpack("i", found)[0]

    def start(self, arguments, environment, folder, streams):
        """The call's process."""
        words = [*arguments, *(f"{name}={value}" for name, value in environment.items())]
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            head = struct.pack("III", len(arguments), len(environment), len(text))
            socket.send_fds(self.socket, [head], [*streams, directory])
            self.socket.sendall(text)
        finally:
            os.close(directory)
        return self.number()


def feed(file, data):
    with open(file, "wb", buffering=0) as pipe:
        try:
            while data:
                data = data[pipe.write(data):]
        except BrokenPipeError:
            pass


def read(file, parts):
    with open(file, "rb") as pipe:
        parts.append(pipe.read())


def run(arguments, **more):
    """What it prints is captured; the rest is as subprocess.run has it. Where the program lacks a part, it is said
    again, for tests/without.sh."""
    done = called(arguments, **more)
    if os.environ.get("MESHWRIGHT_LEFT_OUT") and "was made without" in str(done.stdout) + str(done.stderr):
        print("the program that was called was made without this part", flush=True)
    return done


def called(arguments, *, cwd=None, env=None, input=None, stdin=None, text=False, timeout=600):
    arguments = [os.fspath(word) for word in arguments]
    environment = dict(os.environ if env is None else env)
    like = inherited(environment)
    if LIBRARY is None or like != inherited(os.environ) or "--sandbox" in arguments:
        return subprocess.run(arguments, cwd=cwd, env=env, input=input, stdin=stdin, text=text, capture_output=True,
                              timeout=timeout)
    if getattr(of_thread, "like", None) != like:
        of_thread.like, of_thread.loaded = like, Loaded(environment)
    loaded, outputs, threads = of_thread.loaded, ([], []), []
    pipes = [os.pipe() for _ in range(2 if input is None else 3)]
    ends = [write for _, write in pipes[:2]]
    source = 0
    if input is not None:
        ends.append(pipes[2][0])
        source = pipes[2][0]
        threads.append(threading.Thread(target=feed, args=(pipes[2][1], input.encode() if text else input)))
    elif stdin == subprocess.DEVNULL:
        source = os.open(os.devnull, os.O_RDONLY)
        ends.append(source)
    process = loaded.start(arguments, environment, cwd or ".", [source, *ends[:2]])
    for end in ends:
        os.close(end)
    threads += [threading.Thread(target=read, args=(pipe[0], parts)) for pipe, parts in zip(pipes, outputs)]
    for thread in threads:
        thread.start()
    late = False
    for thread in threads:
        thread.join(timeout)
        late = late or thread.is_alive()
    if late:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(loaded.number())
    if late:
        raise subprocess.TimeoutExpired(arguments, timeout)
    shown = [parts[0] for parts in outputs]
    if text:
        shown = [each.decode().replace("\r\n", "\n").replace("\r", "\n") for each in shown]
    return subprocess.CompletedProcess(arguments, code, *shown)
