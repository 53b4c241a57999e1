"""What each problem says: the only place where tests look at words. Of each code the forms of
message and hint, "message [hint]"; docs/errors.md has every code in a sentence."""
import os
import pathlib
import re

SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
CODES = set(re.findall(r"(?m)^\| `(\S+)` \|", (SOURCE / "docs/errors.md").read_text()))

NAME, NUMBER, NEAREST = r"[\w.\[\]]+", r"-?[\d.e+]+", r"\[nearest: "
PROCESS = r"process \d+( on \S+)?"
MESSAGES = {
    "account.missing": [r"run file \S+: no account was taken of any of its steps \[set account = true in .*\]"],
    "axis.cannot-borrow": [r"\w+\(\d+\) cannot borrow ranks of \w+(, \w+)* \(\d+ ranks\) \[possible: \d+(, \d+)*\]"],
    "axis.cannot-share": [r"sp\(\d+\)(: ulysses = \d+)? cannot share out \d+ heads( of each rank of tp)? "
                     r"\[nearest: (sp \{ \d+, form = \"ulysses\" \}|ulysses = \d+)\]"],
    "axis.cannot-split": [r"(b: )?\w+\(\d+\) cannot split \d+ \w+ \[(nearest: \w+\(\d+\)(, \w+\(\d+\))?|no other "
                     r"number near it goes .*)\]"],
    "axis.too-many": [r"sp\(\): \d+ tokens cannot be split over \w+'s \d+ ranks( and the \d+ that have parts of "
                     r"it)? \[nearest: a sequence of \d+, or leave sp\(\) out\]"],
    "axis.twice": [r"plan\[\d\]: \w+: it asks for the axis \w+, and so does \w+ \(plan\[\d\]\) \[(name each "
                     r"strategy once|leave one of them out)\]"],
    "axis.unknown": [r"(plan\[\d\]: ep: )?ep\(\d+\) takes ranks of (\w+, )*\w+, and the plan has none of these axes "
                     r"\[add \w+\(\d+\)\]",
                     r"ep\(\d+\) takes ranks of (any \w+ axis(, )?)+, and the plan has none of these axes \[add a "
                     r"strategy that splits the \w+, in \d+ ways\]",
                     r"ep\(\d+\)\.borrow: the plan has no axis \w+ \[its axes are \w+(, \w+)*\]",
                     r"zero\(\d+\)\.sequence: no axis of the plan splits the sequence \[leave sequence out, or "
                     r"add sp \{ n \}\]",
                     r"sp\(\) cuts the residual stream over the ranks of tp, and the plan has no tp \[add tp\(n\), "
                     r"or write sp \{ n, .*"],
    "batch.uneven": [r"(b: )?batch: \w+\(\d+\)( x \w+\(\d+\))* cannot split \d+ sequences evenly over \d+ ranks( "
                     r"\(what microbatch makes of step \d+\))? \[nearest: batch = \d+( or \d+)?\]"],
    "calibration.base": [r"(no log says which devices the cluster has|no cluster that ships has .+) \[name the nearest with "
                         r"--cluster: [\w, -]+\]",
                         r"\S+ is a torus, which has no nodes and no network \[name a cluster of nodes with --cluster, .*\]",
                         r"\S+ has no network, and a log is of \d+ nodes \[name one with --cluster that has: .*\]",
                         r"steps were measured, and nothing says by which software \[name the stack that is nearest .*\]",
                         r"it is the software of steps, and none are given \[give measured steps, .*\]"],
    "calibration.broken": [r"\S+ is not a calibration file: .* \[measure anew: meshwright calibrate\]"],
    "calibration.contradiction": [r"\w+_perf of [\d.]+ \wi?B among \d+ ranks on \d+ nodes? took \S+ ms, and \S+ ms in "
                                  r"\S+:\d+ \[give the one of the two that holds\]"],
    "calibration.devices": [r"it is of .+, and \S+ is of .+ \[a description has one kind of device: .*\]",
                            r"--devices \d+, and a log has \d+ ranks on one node \[--devices \d+, or leave it out\]"],
    "calibration.exists": [r"\S+ exists already \[another name, or --overwrite\]"],
    "calibration.log": [r"there is no table of nccl-tests in it \[give what all_reduce_perf, .*\]",
                        r"a row of \d+ columns is cut off: it has \d+ \[run it again, or take the row out\]",
                        r"there is no such file, or it cannot be read \[name logs of nccl-tests, .*\]",
                        r"it is a (folder|named pipe|device) \[name .*\]", r"the program failed after \d+ rows? \[links that fail .*"],
    "calibration.missing": [r"there is no calibration \S+ \[MESHWRIGHT_CALIBRATION names it; .*"],
    "calibration.other-machine": [r"the calibration \S+ is not of this machine: it is of .* \[measure this one: meshwright calibrate\]"],
    "calibration.output": [r"a cluster file ends in \.lua \[-o \S+\.lua\]", r"there is no folder \S+ \[make it first, or -o \S+\.lua\]",
                           r"--from writes a cluster file, and nothing names it \[-o mine\.lua\]"],
    "calibration.sizes": [r"\d+ sizes? in the table, and a curve takes \d+ \[run it with .*\]"],
    "calibration.steps": [r"\S+ makes \d+ plans?, but a measured step needs exactly one plan \[give a script that .*\]",
                          r"there is no script \S+ \[a relative path counts from the file of steps\]",
                          r"set has .*, which is no text \[each is what --set takes: .*\]",
                          r"its plan needs \S+ [KMG]iB of a device, and \S+ has \S+ [KMG]iB: it cannot be what was "
                          r"measured \[does \"set\" have .*\]",
                          r"[\d.]+ m?s measured, and [\d.]+ m?s priced by \S+, [\d.]+ m?s with all that a fit may change "
                          r"\[\"step\" is in seconds(: are these \w+\?| of a whole step; .*)\]"],
    "calibration.twice": [r"its \d+ rows are those of \S+:\d+, and would count twice \[give each log once\]",
                          r"it is the step of \S+, which would count twice \[give each step once: .*\]"],
    "calibration.wrong-results": [r"the collective gave wrong results in \d+ rows? \[what computes wrongly has no speed: .*\]"],
    "calibration.write": [r"cannot write \S+: .* \[name another file: meshwright calibrate -o FILE\]"],
    "checkpoint.broken": [r"checkpoint\.path: no checkpoint in \S+ is whole: the checkpoint \S+ is broken: .* \[take them away to "
                     r"begin anew, .*"],
    "checkpoint.differs": [r"checkpoint\.path: .* another experiment.*: (\w+: another function|model: its functions record other ops) \[.*",
                           r"(checkpoint\.path|resume\.from): the checkpoint \S+ is of another experiment: [\w.]+: .* there, .* "
                     r"here.* \[(no run can go on from it; .*|a folder of its own, .*changed = true \}\])"],
    "checkpoint.folder": [r"checkpoint\.path: .* has the name of a checkpoint and is none: there is no .* \[move it away, or name another folder\]",
                          r"checkpoint\.path: cannot write to \S+: .* \[name a folder that you may write to\]",
                          r"checkpoint\.path: \S+ is a checkpoint, not a folder of checkpoints \[name the folder in which it lies\]"],
    "checkpoint.in-use": [r"checkpoint\.path: another run writes its checkpoints to \S+, process \d+( on \S+)? \[give this one .*"],
    "checkpoint.missing": [r"resume\.from: there is no checkpoint in \S+ \[name a checkpoint, .*",
                        r"there is no checkpoint in \S+ \[name the path of .*"],
    "chaos.script": [r"chaos: without any fault \S+ ends with \d+(: .*)? \[mend the script first: .*",
                     r"chaos: \S+ trains \d+ times, and one training is disturbed \[give a script with one mw\.train\]"],
    "checkpoint.past": [r"steps: the run is of \d+ steps?, and the checkpoint \S+ was written after \d+ \[nearest: steps = \d+, with "
                        r"which nothing is left to do(, or resume = \{ from = \"\S+\" \}, after step \d+, and another .*)?\]"],
    "checkpoint.taken": [r"checkpoint\.path: .* another experiment.*: (\w+: another function|model: its functions record other ops) \[.*",
                           r"checkpoint\.path: \S+ has checkpoints of another experiment, up to step \d+: .* \[name a folder .*",
                      r"resume\.from: \S+ has later checkpoints than step \d+, up to step \d+ \[give the run .*"],
    "cluster.host": [r"cluster\.host: is missing, and the plan keeps tensors in host memory \[host = .*"],
    "cluster.rate": [r"precision: \w+ on devices that have no units for it \(.*, cluster\.device\.lacks\) "
                     r"\[nearest: precision = \"\w+\"\]",
                     r"cluster\.device\.peak\d+: is missing, and the plan computes in \w+ \[give its .*"],
    "cluster.room": [r"cluster\.nodes: \d+ ranks, and \d+ devices in \d+ nodes? \[nodes = \d+ or more, .*"],
    "cluster.value": [r"(cluster|stack)(\.\w+|\[\d+\])+: .* \[.*"],
    "cluster.missing": [r"cluster: \{ .* \} describes no hardware \[name the cluster that this changes: .*"],
    "compare.count": [r"runs compare takes two runs or more; found 1 run \[name two run files, .*",
                      r"compare takes two experiments; found \d+ mw\.train \[give two scripts .*"],
    "compare.differs": [r"\w+: a has .*, b has .*; a comparison needs the same .*"],
    "compare.not-finite": [r"compare: one rank in float64 is not finite either in step \d+ \[a lower learning "
                     r"rate; .*"],
    "compare.overflow": [r"compare: the gradients of \w.* overflow in step \d+, with a loss scale of \S+, "
                     r"so the step makes no update \[compare with a lower loss_scale\]"],
    "compare.steps": [r"microbatch: the steps of b have \d+ plans, and a comparison is of one each \[.*"],
    "data.ambiguous": [r"\S+: \".*\" is the name of a text that comes with the program, and of \S+ \[write \"\./.*"],
    "verify.no-labels": [r"data: no label of the first step counts, .* \[verify with samples .*\]"],
    "batch.groups": [r"batch: the \d+ sequences of a step are no groups of \d+, of which \S+ takes means \[nearest: .*\]"],
    "data.dtype": [r"data\.dtype: .*: its header says that its tokens are \w+, and dtype is \"\w+\" \[leave dtype out, or write .*\]",
                   r".*\.(bin|tok): .* \[(say the type in which the file was written|dtype = |.*; if its bytes are tokens as they lie, say their type: ).*"],
    "data.header": [r".*\.(bin|idx|tok): .* \[.*"],
    "data.token": [r"(On rank \d+: )?.*\.bin: token \d+ is -?\d+, and the model's ids are 0 to \d+ \[.*"],
    "data.too-short": [r".* holds \d+ tokens, one \w+ sample of sequence = \d+ needs \d+ \[.*"],
    "data.shape": [r"data\.path: .*: labels are -\d+ at row \d+, column \d+ \[ids are whole numbers from 0 on; labels of .*"],
    "data.twice": [r".* (is named twice|are the same file) \[name each file once; .*"],
    "data.documents": [r".*documents?.* \[.*\]", r".*\.csv:\d+: .* \[the line .*\]", r"data\.lengths: .* is no distribution of lengths .* \[.*\]"],
    "data.pack": [r"(On rank \d+: )?data\.into: (document \d+ \(\d+ tokens?\) is in .*|row \d+ .*|the (function|policy) returned .*) \[(return at most \d+ lists, .*|let it depend on its arguments alone)\]"],
    "data.mask": [r"data\.mask: .*(: byte \d+ is \d+|\.csv:\d+: .*|\.csv has no range| has \d+ bytes?, and the data have .*) \[.*\]"],
    "data.input": [r"data: \w+ has no input \w+, which the model declares: .* \[mw\.tensors reads inputs from a file; mw\.synthetic makes noise for every one\]"],
    "data.vocab": [r"model\.vocab: \d+ ids are too few for data: \w+ has \d+ \[use vocab = \d+\]"],
    "device.build": [r"device: this build has nothing for \"cuda\".* \[\./meshwright build --preset cuda .*"],
    "device.id": [r"device: NVIDIA's driver does not say which GPU \d+ is \[nvidia-smi -L must list .*\]"],
    "device.none": [r"device: this machine has 0 devices of \"\w+\" that can be used(: \w[^\[]*)? \[write device = \"cpu\".*"],
    "environment.value": [r"OMP_THREAD_LIMIT is \".*\", which is no number of threads \[set it to 1 or more, or unset it\]",
                          r"MESHWRIGHT_FIRST_USE is \".*\" \[set it to on or off\]"],
    "plugin.path": [r"there is no such folder \[.*\]"],
    "file.missing": [r"data\.path: \"\S+\" is a folder, and files of tokens are named \[write \".*\*\.bin\"\]", r".*: there is no such (file or folder|folder here) \[(name a run file|did you mean).*",
                     r"data\.path: no file or folder \".*\" \[looked for .*", r"data\.(path|mask|documents): no file matches \".*\" \[.*", r"plan\[1\]\.schedule: there is no "
                     r"file .* \[name a CSV of compute actions, or one of .*",
                     r".*: there is no such file \[.*"],
    "file.format": [r"report: .*: it holds no result of plan or search \[write one: .*",
                    r".*: line \d+ is no JSON: .* \[write it again: .*", r".*sweep\.json cannot be read as .* \[move it away: .*",
                    r"data\.path: .* is no text: .* \[.*"],
    "file.read": [r"((data|checkpoint)\.path: )?cannot (read|list) .*: .* \[.*",
                  r"((data|checkpoint|plan\[\d\])\.\w+: )?.* is (a named pipe|a device|a folder|a socket), and no file .* \[name a regular file\]"],
    "export.not-finite": [r"(On rank \d+: )?export: \S+ has numbers that are (NaN|infinite), so that no weights are written \[.*\]"],
    "logits.not-finite": [r"logits: some of them are NaN or infinite, so that no file is written \[precision = .*\]"],
    "weights.not-finite": [r"(On rank \d+: )?weights: \".*\" of \S+ has numbers that are (NaN|infinite) \[take other weights: .*\]"],
    "weights.range": [r"(On rank \d+: )?weights: \".*\" of \S+ has numbers of up to \S+, which are infinite in the model's precision "
                      r"\[write precision = .*\]"],
    "export.range": [r"(On rank \d+: )?\S+ has numbers of up to \S+, which are infinite in the dtype of the file \[write dtype = .*\]"],
    "file.write": [r"cannot write .*: it is (a named pipe|a device|a folder|a socket), and tensors go into a regular file \[name another file\]",
                   r".*: cannot write it: .* \[name a (file in a )?folder that you may write to\]",
                   r"(-o|--\w+) .*: that is (the (run file|script|schedule that is read|script of a measured step)|a file of --from|"
                   r"the file of --(cluster|stack)) \[name another file\]",
                   r"(-o|--\w+) .*: (-o|--\w+) names it too \[name another file\]"],
    "function.result": [r"skip: the function returned 3 for \".*\" \[return why .*",
                        r"model\.block: layer \d+: returned .*, not a value \[return what .*",
                        r"model\.graph: returned .*, not a value \[return a loss: .*",
                        r"plan\[1\]\.hook: the function returned (nothing|7) for bucket 0 \[return one of "
                     r"\"none\", \"bf16\", \"int8\", \"powersgd\"\]",
                        r"plan\[1\]\.schedule: the schedule function returned .* \[return a list with one entry "
                     r"for each stage, .*",
                        r"(loss_scale|microbatch): the function returned .* for step \d+ \[return .*",
                        r"schedule: the function returned .* as the learning rate of step \d+ \[return a finite "
                     r"number, 0 or more\]",
                        r"(On rank \d+: )?(observe|observers\[\d+\])\(\d+\) returned .* \[(return \{ name = number \}.*|give it another name)\]",
                        r"(On rank \d+: )?schedule: the function returned .* as the learning rate of step \d+ "
                     r"\[return a finite number, 0 or more\]",
                        r"(offload|recompute): the function returned .* for .* \[return true or false\]"],
    "goodput.never": [r"goodput\.(mtbf|causes): a failure comes every \S+ s, and .* takes \S+ s \[no such run gets on; .*"],
    "help.unknown": [r"help: nothing is called \".*\" \[(did you mean .*|help\(\) says what there is)\]",
                     r"help: there is nothing to say of a \w+ \[.*\]"],
    "hook.dtype": [r"plan\[1\]\.hook: powersgd factors gradients, and .* has them in 2 bytes each "
                   r"\[write main_gradients = \"fp32\" in the experiment\]",
                   r"plan\[1\]\.hook: it refuses bucket \d+ \[let it\]"],
    "hook.differs": [r"plan\[2\]\.hook: two entries chose different hooks for .*: .* and .* \[leave hook out of one .*\]"],
    "hook.gathers": [r"plan\[1\]\.gather: the hook \w+ sums gradients, and gathers no parameters \[gather = \"int8\", .*\]"],
    "hook.parts": [r"plan: no reduction in every microbatch for gradients that are summed in parts over \w+ .*"],
    "kit.folder": [r"\"\w+\" exists already \[choose another name, or go to another folder\]",
                   r"cannot make the folder .* \[go to a folder that you may write to\]"],
    "kit.kind": [r"there is no kind \".*\" \[(did you mean \"\w+\"\?|kinds: .*)\]",
                 r"a plugin cannot bring a \w+ in this version \[kinds: \w+(, \w+)*\]",
                 r"a script cannot bring a thing of the kind \"\w+\" \[leave --lua out: .*"],
    "kit.name": [r"\".*\" cannot be the name of a plugin: scripts have it as a variable \[use a lower-case .*"],
    "launch.alone": [r"--cluster compares processes that a launcher has started, and this one is alone \[srun .* doctor --cluster, or torchrun or mpirun\]"],
    "launch.command": [r"(sweep|repl|--max-restarts) is for one process, and \w+ started \d+ \[.*"],
    "launch.communicator": [r"\w+ started \d+ processes, and there is nothing that connects them: .* \[.+; --communicator names another one, .*"],
    "launch.mpirun": [r"--processes: mpirun was ended by SIG\w+, and its processes with it "
                      r"\[(another program has killed it, or the kernel did .*|what it said stands above; mpirun -n 2 true shows .*)\]"],
    "launch.processes": [r"--processes \d+, and \w+ started \d+ \[leave --processes out: .*"],
    "launch.ranks": [r"plan: the plan .* has \d+ ranks?, and \d+ process(es)? were started.* \[start \d+ process.*"],
    "log.folder": [r"log: cannot write .*: (it is a folder|.* is no folder) \[name a file .*"],
    "log.foreign": [r"log: cannot write .* \[(remove it, or name another file|name another folder, .*)\]"],
    "log.in-use": [r"log: .* is being written by another run(, process \d+( on \S+)?)? \[give this one a log of its own, log = \".*\"; .*"],
    "log.taken": [r"tensorboard: events of another experiment are in .*: .*; this one has the hash \w+ \[name a folder of its own, .*",
                  r"log: .* is there, and is another experiment's: .*; this one is .* \[name it otherwise, log = \".*\"; .*",
                  r"log: .* is there and cannot be read, so that nobody knows whose it is: .* \[move it away, or name the log otherwise, .*"],
    "log.twice": [r"log: .* has been written by a run of this script already \[give each run a log of its own: .*"],
    "log.word": [r"(log|checkpoint\.path|tensorboard): \{\w+\} is not known \[(there are \{name\}, .*|did you mean .*)\]"],
    "memory.limit": [r"memory: .* needs .* a rank \(\d+ bytes predicted( in step \d+)?\), the limit is .* \(\d+ "
                     r"bytes\) \[.*"],
    "memory.exceeded": [r"On rank \d+: Rank \d+ is out of its memory limit: \d+ bytes for \w+ on top of \d+ bytes in use go over \d+ bytes\. \(in .*\) "
                     r"\[\S+ \S+ were predicted, (and the run needs more|which assumes .*); a smaller microbatch, .*"],
    "memory.machine": [r"plan: .* does not fit: \d+ ranks of up to .*, .* together, against .* of memory here \[.*",
                       r"plan: .* cannot be verified within .* of memory here: in float64, .* hold .* \[verify the "
                     r"mix with a smaller .*"],
    "microbatch.fit": [r"microbatch\.fit: a rank holds .* at least, with microbatches of \d+; that is above the .* "
                     r"asked for \[more recompute, .*"],
    "microbatch.sum": [r"microbatch: \d+( \+ \d+)* are \d+ sequences, and each rank has \d+ \(batch \d+ over \d+ "
                     r"ranks\)( \(what microbatch makes of step \d+\))? \[make them \d+ together\]"],
    "microbatch.too-large": [r"microbatch: \d+ sequences are more than the \d+ of each rank \(batch \d+ over \d+ "
                     r"ranks\) \[nearest: \d+\]"],
    "model.frozen": [r"model\.graph: .* makes no weight, and nothing of it could be frozen \[leave frozen = true out\]"],
    "optimizer.groups": [r"optimizer: mw\.groups: .* \[(let the last group have no where: .*|narrow one of them|mend its where, or leave it out)\]",
                         r"(optimizer: )?the rule for .* treats it as a matrix, and .* \[leave it to another group\]",
                         r"(optimizer: )?all parameters of the model are frozen, and there is nothing to train \[leave frozen = true out of some weights\]"],
    "replicas.steps": [r"steps: the \d+ do not end with an outer step, .* after every \d+ \[nearest: \d+( or \d+)?\]"],
    "replicas.cut": [r"plan\[1\]: diloco: an entry cuts \w+ over diloco, whose ranks have replicas of the whole model \[give .*\]"],
    "replicas.fragments": [r"plan\[\d+\]\.fragments: \d+ fragments are more than the model's \d+ layers? \[nearest: fragments = \d+\]"],
    "replicas.offload": [r"plan\[\d+\]\.offload: the optimizer's state lies in host memory, and outer steps .* \[leave offload out, .*\]"],
    "replicas.state": [r"optimizer: it keeps a state \"anchor\", as outer steps do \[give the optimizer's state another name\]"],
    "compare.replicas": [r"compare: replicas of .* differ, and no rounding explains by how much \[mw\.verify compares .*\]"],
    "microbatch.sequence": [r"microbatch: step \d+ has sequences of \d+ tokens, and (the experiment of \d+, which are the longest|documents are packed into rows of \d+) \[.*\]"],
    "replicas.order": [r"plan\[\d+\]: diloco: \w+ splits the batch before replicas do \[put the entry for replicas first\]"],
    "replicas.twice": [r"plan\[\d+\]: \w+: the plan has replicas that differ already, by another entry \[one entry for all replicas\]"],
    "optimizer.offload": [r"plan\[\d+\]\.offload: the update reads sums over whole parameters, .* \[update = \"device\" beside offload, .*\]"],
    "update.script": [r"optimizer\.step: (there is no function .*|\w+ takes .*) \[functions: .*\]"],
    "export.state": [r"--state \w+: .* \[.*\]"],
    "model.documents": [r"model: the rows of the data hold several documents, and .* tokens .* \[leave these ops out, .*\]"],
    "model.labels": [r"model: the data have labels that count nothing, and no loss .* \[a loss by cross_entropy .*\]"],
    "model.dims": [r"model\.graph: \w+: labels of \w+ are not those of tokens, so that mean_over says nothing of them \[.*",
                   r"model\.inputs\.\w+: the model has no dim \"\w+\" \[.*",
                   r"model\.graph: \w+: ([\w.]+: )?(\w+ has indices below \d+, and there are|a query of q .* has no place among|what it makes along batch depends).*",
                   r"model\.graph: \w+: its labels \w+ \(.*\) are not indices \(.*\) \[.*", r"model\.dims\.\w+: \w+ is to be like itself \[name the dim .*",
                   r"model\.graph: it returns a value of the dims \(.*\), and a loss is one number \[return .*",
                   r"model\.(block|graph): (\w+: )?layers\.\d+\.\w+(\.weight)?: .*",
                   r"model\.(block|graph): \w+: (layers\.\d+\.)?[\w.]+: (a sum over batch|a weight of the dim|\w+ = \d+ rows, and|the model has no dim|\w+ is given twice).*",
                   r"model\.graph: \w+: its labels \w+ \(.*\) are not indices \(batch, seq\) \[.*",
                   r"model\.graph: \w+: labels \d+ tokens further on, in sequences of \d+ \[\]", r"model\.block: layer \d+: it is given \(.*\) and "
                   r"returns \(.*\) \[what it returns .*",
                   r"model\.dims\.\w+: \w+ is to be like \w+, and there is no such dim \[.*"],
    "model.odd": [r"model\.qk_rope_head_dim: 5 is odd; rotary positions turn the dims of a head in pairs \[make it "
                     r"even\]"],
    "model.twice": [r"model\.(block|graph): \w+: [\w.]+: a layer has one router, and this is its second \[put it .*", r"model\.inputs\.\w+: \w+ is an input of every model \[give yours another name\]", r"model\.graph: a loss is returned twice \[give it a weight .*",
                    r"model\.dims\.\w+: \w+ is a dim of every model: it cannot be given a size \[.*",
                    r"model\.block: layer \d+: two ops are called \"\w+\" \[give one .*"],
    "model.unused": [r"model\.inputs\.\w+: nothing uses m\.\w+ \[leave it out, .*", r"model\.graph: (nothing uses what \"\w+\" makes|the graph has no layers|a layer of m:layers\(\) has no ops) \[.*",
                     r"model\.block: layer \d+: nothing uses what \"\w+\" makes \[return it, .*",
                     r"model\.dims\.\w+: no op has the dim \w+ \[leave it out, .*"],
    "option.choice": [r"the pass \".*\": there is no axis \".*\", in this plan or of a strategy that ships \[(did you mean .*\?.*|the plan's "
                      r"axes are .*)\]",
                      r".*(\.over|\]|\.before|\.after)\.\w+: there is no (code|piece|move|segment) \".*\" \[(did you mean .*\?|there are: .*)\]",
                      r"recompute: there is no \"ful\" \(in \".*\"\) \[.*",
                      r'(recompute(\.what)?|offload): there is no "\w+" \[(did you mean "\w+"\? there are: )?"none", .*',
                      r"(model\.block: the op|device: the device) \"\w+\" is in the plugin \w+ \[write mw\.plugins.*",
                      r"model\.block: there is no op \"\w+\" \[(did you mean \"\w+\"\? )?ops: .*",
                      rf"{NAME} must be one of (\"[\w-]*\"(, )?)+; got \".*\" \[(did you mean \"[\w-]+\"\?)?\]",
                      r"plan\[1\]\.gather: got true; there are \"none\", a hook that gathers, as \"int8\", or a function \[leave it out .*\]",
                      r"plan\[1\]\.hook: got .*; there are \"none\", \"bf16\", \"int8\", \"powersgd\", or a function \[leave "
                     r"it out .*\]",
                      rf"({NAME}: )?there is no (scheduler|reduction hook|{NAME}) \".*\" \[(did you mean \".*\"\? "
                     r")?(scheduler|reduction hook|\w+)s: .*; others come from plugins: .*--plugin-path\]",
                      r"(offload|recompute): there is no \"half\" \[.*\"full\".*",
                      r"(offload|recompute)\.ops: no op of a layer is called \"mpl\" \[kinds are .*attention.*"],
    "option.conflict": [r"model\.\w+: experts choose their tokens \(chosen_by = .*\), and \w+ is \w+ \[\w+ = .*\]",
                        r"model\.\w+: graph and \w+: a graph (is the whole model|says itself what it projects by) \[.*",
                        r"model\.layers: layers: no loop of the graph takes .* \[write for layer .*", r"attend: window and causal = false: .* \[leave out one of them\]",
                        r"zero\(\d+\): keep = true at stage \d, .* \[leave keep out, or write stage = 3\]",
                        r"evaluate\.by is \"anchor\", and the plan has no replicas that differ \[plan = .*",
                        r"plan\[\d+\]\.outer\.nesterov: nesterov looks ahead by the momentum, and momentum is 0 \[momentum = 0\.9, .*",
                        r"evaluate\.by is \"average\", and the optimizer keeps no average \[optimizer = mw\.ema .*",
                        r"evaluate\.data\.sequence is \d+, and the run.s is \d+ \[leave it out: .*",
                        r"model\.block: experts of two layers differ in \w+: .* \[give all layers .*",
                        r"model\.kv_heads: latent attention has a key for every head \[leave kv_heads or "
                     r"kv_lora_rank out\]",
                        r"plan\[1\]\.ulysses: \d+ of the ranks share out heads, and under form = \"ulysses\" all "
                     r"do \[take form = \"ring\" or \"allgather\" .*",
                        r"zero\(\d+\): reduce = \"chunk\" at stage 1, where gradients stay whole .* \[leave reduce "
                     r"out, or write stage = 2\]",
                        r"plan\[1\]\.reduce: \"each\" does not go with a hook: the sum so far would be compressed "
                     r"again .* \[write reduce = \"last\", or hook = \"none\"\]",
                        r"microbatch: ramp: says how long it takes by one of steps and sequences \[for example "
                     r"steps = 100\]",
                        r"offload: layers and ops are two ways to choose; take one \[.*",
                        r"recompute: what, every, ops and fit are four ways to choose; take one \[.*",
                        r"recompute\.by_stage: only fit chooses for each stage \[leave it out, or write .*",
                        r"recompute: gathers = true repeats all-gathers, and collectives = \"keep\" stores their results \[take one of "
                     r"them\]"],
    "option.divides": [r"model\.(groups|block: layers\.0\.\w+): \d+ groups do not divide \d+ experts \[nearest: groups = \d+( or \d+)?\]",
                       r"zero\(\d+\): \d+ replicas do not divide \d+ ranks \[nearest: replicas = \d+( or \d+)?\]",
                       r"plan\[1\]\.ulysses: \d+ does not divide sp's \d+ ranks \[nearest: ulysses = \d+\]"],
    "option.missing": [r"resume needs to know where checkpoints lie, .* \[write checkpoint = .*",
                       rf"(model\.\w+: )?{NAME} is missing \[.*", r"sequence is missing: the tokens of one sample \[write sequence = .*",
                       r"model\.v_head_dim: missing beside kv_lora_rank \[DeepSeek-V3 "
                     r"has .*",
                       r"recompute: there is no limit to fit: neither memory nor a cluster is named \[write .*",
                       r"microbatch\.memory: there is no limit to fit \[write mw\.microbatch\.fit .*",
                     r"plan\[2\]\.borrow: lists no axis \[name one, .*",
                       r"recompute: a table needs one of the keys what, every, ops, fit and gathers \[.*"],
    "option.needs": [r"data\.longer: \"refuse\", and no table has the lengths .* \[leave longer out, .*\]", r"model\.inputs: inputs are for a graph, and there is none \[write graph = .*", r"data\.certain: certain is of the type that dtype names, and no dtype is given \[dtype = .*\]",
                     r"account: it is written to the run file \[name one: log = .*\]", r"(plan\[\d\]: zero: )?zero\(\d+\): ((prefetch|bucket) = \d+|gather = .* at stage \d,) .* \[leave \w+ out, or .*\]",
                     r"(plan\[\d\]\.overlap: )?ep\(\d+\): overlap = true under dispatch = .* \[leave overlap out, or take .*\]",
                     r"plan\[\d\]\.balance: \"\w+\" under form = \"ulysses\", .* \[leave balance out, or take .*\]",
                     r"(plan\[\d\]: pp: )?pp\(\d+\): the schedule \".*\" is written down, and times .* \[leave times out, .*\]",
                     r"plan\[2\]\.(form|balance): \"\w+\" is for ranks of sp's own \[write sp \{ 2, .*",
                     r"model\.ahead_weight: is the factor of the losses of further tokens, and no module .* \[give predict_ahead too, .*",
                     r"model\.qk_nope_head_dim: is for latent attention, and there is no kv_lora_rank \[.*"],
    "option.range": [r"model\.graph: furthest: furthest = \d+ is not beyond the \d+ distances that have a bucket each \[furthest = \d+ or more\]",
                     rf"cluster\.\w+\.\w+ must be between .*; got {NUMBER} \[for example \w+ = .*\]",
                     rf"{NAME} must be (at least|at most|between) .*; got {NUMBER} {NEAREST}.*\]",
                     r"model\.(group_top|top_k|block: layers\.0\.\w+): a token cannot choose \d+ of \d+ (groups|experts) \[(group_top|top_k) = \d+ at most\]",
                     r"model\.(top_k|block: layers\.0\.\w+): a token cannot choose \d+ of \d+ experts, which \d+ of \d+ groups have "
                     r"\[top_k = \d+ at most, or group_top = \d+\]",
                     r"model\.dense_layers: 2 of 2 layers are dense: none has experts \[dense_layers = 1 at most, "
                     r"or mw\.llama\]",
                     r"microbatch\.from: 20 sequences are more than the batch of 14 \[nearest: from = 14\]",
                     r"offload\.layers: 5 of a model of 4 layers \[nearest: 4, which is all of them, or \"full\"\]"],
    "option.type": [r"model\.dims\.\w+: got .* \[a dim is a whole number .*", r"model\.block: must be a function; got .* \[write .*",
                    r"check must be true, false or \"replicas\"; got .* \[to compare replicas more often: .*\]",
                    rf"{NAME} must be (true or false|an? \w+|text|a size in bytes such as .*); got .* \[.*\]"],
    "option.unknown": [r"model\.inputs\.\w+\.\w+: \w+ is no key of an input \[keys: below\]", r"over\.\S+: an experiment has no key \"\w+\" \[(did you mean \"\w+\"\?|an axis of .*)?\]",
                       r"model\.\w+ is not a known option \(in \".*\"\) \[.*",
                       r"cluster\.\S+ is not a known option \[\w+ is called \w+ now\]",
                       rf"(model\.block: )?{NAME} is not a known option \[(did you mean \"\w+\"\? )?options: .*"],
    "option.twice": [rf"{NAME} is given twice: as .* and as .* without a name \[keep one of the two\]"],
    "option.value": [r"data\.sources(\[\d+\])?: (it lists no sources|.* has no weight and data|.* stands beside weight and data|its weight is .*) \[.*\]",
                     r"(evaluate\.)?data[.\w\[\]]*: .* is no source of data(, and no sources by name)? \[.*\]",
                     r"data[.\w\[\]]*: \w+ has a sequence of its own \[write sequence in .*\]",
                     r"plan\[\d+\]\.fragments: \d+ fragments take turns within \d+ steps \[nearest: fragments = \d+\]",
                     r"plan\[\d+\]\.delay: a delay of \d+ steps is no less than the \d+ between two outer steps \[nearest: delay = \d+\]",
                     r"plan\[\d+\]\.outer: (.* is no outer optimizer|an outer optimizer updates each element by itself, .*|outer gradients have no norm .*) \[.*\]",
                     r"optimizer: the optimizer keeps an average already: \w+ \[leave mw\.ema out\]",
                     r"strategies\[\d+\]: \".*\" has options, which the search chooses \[write its name alone: .*\]",
                     r"optimizer\.groups\[\d+\]: (.* is no optimizer|\".*\" stands beside the optimizer|clip is of the norm of all gradients|lr is 0, and .*|"
                     r"where is .*|it has no where(, and others follow it)?) \[.*\]",
                     r"data\.lengths: \"own\", and the source that is packed has no documents \[mw\.shards .*\]", r"model\.inputs\.\w+: got .*; an input has the dim batch, and then seq or dims of the model \[image = .*",
                     r"model\.inputs\.\w+\.below: got .* \[below = 2 or the name of a dim: .*", r"data\.path: the braces of \".*\" stand for \d+ names; 10000 may be \[write .*\]",
                     r"account: it is taken of the steps of `trace`, which names none \[leave trace out .*\]", r"resume: got .* \[true, or \{ from = .*", r"checkpoint\.path: got an empty text \[name a folder: .*",
                     r"trace: .* is no step \[steps count from 0: trace = .*",
                     r"(model\.\w+: )?f: (\".*\" (cannot be read: .*|has no operand)|a number in it is too large for fp32) \[an expression of .*",
                     r"(model\.\w+: )?f: an expression of \d+ characters, and \d+ may be \[write it .*",
                     rf"{NAME}: got .* \[.*", rf"{NAME}: \w+ is an? .*, not an? .* \[\w.*s: .*\]",
                     r"optimizer\.betas: these are not two \[for example .*\]",
                     r"plan\[1\]\.layout: .* is no number of layers \[list the layers of "
                     r"each stage: layout = .*",
                     r"plan\[2\]\.borrow: 2 is no axis to take ranks of \[list names of axes: .*"],
    "page.foreign": [r"(-o|--\w+|mw\.bar_chart) .*: it is there, and it is no (page|drawing|trace) of meshwright \[name another file; .*",
                     r"(-o|--csv|--log) .*: it is there, and it is no (table of runs|schedule|calibration|description of calibrate --from|file of "
                     r"logits|log of chaos) "
                     r"\[name another file; .*",
                     r"--figures .*: it is there, and it is no figure of meshwright \[name another folder; .*"],
    "page.part": [r"a part of the reports' page is missing: .* \[build or install the program anew; .*"],
    "part.left_out": [r"this program was made without \w+ \[build it again without -DMESHWRIGHT_WITHOUT=\w+\]"],
    "pipeline.layers": [r"pp\(\d+\)( with \d+ chunks)? makes \d+ virtual stages of \d+ layers \[(nearest: "
                     r"pp\(\d+\)|a stage has .*)\]",
                        r"pp\.layout = \{ .* \} (adds up to \d+ layers; the model has \d+|lists \d+ parts; "
                     r"pp\(\d+\).* has \d+ (virtual )?stages) \[list \d+ numbers that add up to \d+\]"],
    "pipeline.times": [r"pp\.times has \d+ entries for \d+ virtual stages \[.*"],
    "plan.float64": [r"plan: the plan can be made in \w+ and not in float64, in which it is compared with one rank: .* "
                     r"\[make choices that look at bytes, .*\]"],
    "plan.ranks": [r"plan: .* = \d+ ranks; a mesh has 16777216 at most \[use fewer ways\]",
                   r"plan: .*; ranks are threads of this process here, 512 at most \[predict it without running it "
                     r"\(meshwright plan, mw\.plan\), use fewer ways, or start more processes\]"],
    "plan.fit": [r"--must-fit: (.* does not fit|it is not known whether .* fits) \[.+\]"],
    "plan.size": [r"(model: its parameters|batch: the tensors of a step) would have \S+ elements, more than a plan "
                     r"can hold .* \[make \w+ smaller .*",
                  r"microbatch: .* (works|microbatches) .*more than a plan can hold.* \[.*", r"\d+ stages x \d+ "
                     r"chunks x \d+ microbatches are \d+ forwards \[\d+ at most\]"],
    "plan.twice": [r"plan\[\d\]: sp: it is what plan\[\d\] asks for already, with the same options \[leave one of "
                     r"them out\]"],
    "plugin.abi": [r"plugin \"wrong_abi\": .* is unusable: built for plugin ABI 999; this program has plugin ABI "
                     r"\d+ \[rebuild it .*"],
    "plugin.fault": [r"(On rank \d+: )?(plan\[1\]|optimizer|data|observers\[\d\]): the plugin \"\w+\" threw while it .*: .* \[mend the plugin\]",
                     r"On rank \d+: observers\[\d\]: \w+: after step \d+ it (ended the run, and .*|gave a number .*|changed numbers of others) \[.*\]",
                     r"On rank \d+: \w+ \(observers\[\d\]\) was shown a tensor of step \d+, and threw: .* \[mend the observer\]",
                     r"On rank \d+: (observers\[\d\]: \w+: )?watch\(\) was given no watcher \[give it one that lives until .*\]",
                     r"observers\[\d\]: \w+: it threw \".*\" in failed\(\), which tells it .* \[mend the observer; .*\]"],
    "plugin.timeout": [r"On rank \d: \w+ \(observers\[\d\]\), (called (before the first|after) .*step.*|shown a tensor), has not returned "
                       r"within \d+ s \[mend it, or set a longer timeout .*\]",
                       r"observers\[\d\]: \w+: it has not returned within \d+ s of failed\(\), which tells it .* \[mend the observer; .*\]"],
    "plugin.writable": [r"(plugin \"\w+\": \S+ is unusable: |\S+: )(anybody on this machine|the group \d+, which you are not in,) may write \S+ "
                        r"\(mode \d+\) \[look at the files there first, then: chmod [go]-w \S+\]"],
    "process.token": [r"process \d+( on \S+)? has not the token of this run \[.*\]"],
    "program.failed": [r"--(figures|from): \S+ failed, which (draws figures|reads what was measured): .* \[please report it with the command\]"],
    "program.missing": [r"chaos: \S+ cannot be started, which disturbs trainings: .* \[install python3 \(3\.9 or later\), or .*",
                        r"--(figures|from): \S+ cannot be started, which \w.*: .* \[install python3(, numpy)? and \w+, or .*",
                        r"--pgf: pdflatex with the package pgf is not there, .* \[install LaTeX with the package pgf .*"],
    "python.missing": [r"--\w+: \S+ (cannot import \w+|has matplotlib \S+, and 3\.6 or later is needed) "
                       r"\[\S+ -m pip install .*"],
    "ranks.differ": [r"ranks: \d+ are asked for, and the plan has \d+: .* \[nearest: (.*, or )?ranks = \d+\]"],
    "plugin.lacks": [r".*/\w+\.so registers the \w+ \"\w+\"(, the \w+ \"\w+\")*, and no \w+ \"\w+\" \[write a name that it registers, .*"],
    "plugin.left_out": [r"this build has no \w+ \"\w+\": .* \[.*\./meshwright build.*\]"],
    "plugin.misnamed": [r"plugin \"\w+\" is in a file of another name: .*/\w+\.so \[rename the file to \w+\.so\]",
                        r".*/\w+\.so holds the plugin \"\w+\", not \"\w+\" \[rename the file to \w+\.so\]"],
    "plugin.no-file": [r"\./none\.so: there is no such file \[\]"],
    "plugin.taken": [r"\"\w+\" exists already \[choose another name; meshwright plugins list has those .*",
                     r"the optimizer \"adamw\" of .*taken\.so has its name from the program \[give it another name, .*"],
    "plugin.unknown": [r"nothing that can be composed is named \".*\" \[(did you mean \".*\"\? )?meshwright plugins list shows all; .*\]",
                       r"there is no plugin \"ttp\" in .* \[did you mean \"tp\"\? plugins: .*"],
    "process.apart": [r"(schedule|loss_scale): the (learning rate|loss scale) of step \d+ is .* on rank 0 and .* \[let it .*",
                      rf"{PROCESS} is at .*, {PROCESS} at .* \[a script must call the same verbs, .*",
                      rf"{PROCESS} has come to its end, {PROCESS} is at .* \[a script must call the same verbs, .*",
                      rf"mw\.\w+ differs between {PROCESS} and {PROCESS}: .* is .* on {PROCESS} and .* \[a script must give the same tables .*",
                      rf"{PROCESS} would run \S+, {PROCESS} would run \S+ \[a script must give the same tables .*"],
    "process.device": [r"MPI carries tensors of the CPU, and ranks are to run on \w+\. \[Use device = \"cpu\", .*"],
    "process.join": [r"MPI: \w+ failed: .* \[Try `mpirun -n 2 hostname` .*", r"MPI is in use in this process already\. \[.*"],
    "process.lost": [rf"(On rank \d+: )?(P|p)rocess \d+ (\(pid \d+ on \S+\) )?(died: .*|has ended|has left while its ranks ran)"
                     r"\.?( \(rank.*)? \[\]"],
    "process.over": [r"the processes have parted after an earlier failure \[what fails in one process .*"],
    "process.silent": [rf"{PROCESS} waited .* for {PROCESS}, which has said nothing: .* \[look at what that process does; .*"],
    "process.version": [rf"{PROCESS} runs .*, {PROCESS} runs .* \[install the same build, and the same libraries, on all hosts\]"],
    "recompute.fit": [r"recompute: with all of it a rank still holds .* at most(, with what is in use beside the program)?, above the .* asked for \[a "
                     r"smaller microbatch, .*"],
    "rule.dim": [r"ep\(\d+\): the model has no experts \[leave ep out, or take mw\.moe .*"],
    "run-file.foreign": [r"text\.h5: it is no run file \(not HDF5\) \[name a run file: .*"],
    "run-file.schema": [r"other\.h5: it is no run file \(HDF5 without a schema\) \[name a run file: .*"],
    "sandbox.cpu": [r"the script has used \d+ s of CPU time, the limit of its sandbox \[allow more: --sandbox-cpu .*\]"],
    "sandbox.crashed": [r"the process in the sandbox was ended by SIG\w+ \[no limit of the sandbox was reached; .*\]"],
    "sandbox.device": [r"device: the sandbox keeps the script from devices of \"\w+\" \[allow them: --sandbox-device \w+; .*\]"],
    "sandbox.kernel": [r"no sandbox can be made: .*bwrap .* \[install the package bubblewrap, and let .*\]"],
    "sandbox.memory": [r"the script's tables and texts take more than \S+ [MG]iB, a quarter of .* \[allow more: --sandbox-memory .*\]"],
    "sandbox.read": [r".*: the sandbox does not let the script read there \[put the file beside the script, or .*\]",
                     r"\S+ is a link to \S+: the sandbox does not let the script read there \[look at that file first, then: --sandbox-read \S+\]"],
    "sandbox.time": [r"the script has run for \d+ s, the time limit of its sandbox \[allow more: --sandbox-time .*\]"],
    "sandbox.write": [r".*: the sandbox does not let the script write there \[.*--sandbox-write FOLDER\]"],
    "schedule.cell": [r"(plan\[1\]\.schedule(\[\d\])*: )?schedule \".*\", row \d+, cell \d+: \".*\" is not an action "
                     r"\[.*; sends, receives and gathers are added by the core\]"],
    "schedule.chunks": [r"pp\(\d+\): schedule \S+ without chunks would be \S+ \[nearest: chunks = 2, .*",
                     r"(plan\[1\]\.chunks: )?schedule \S+ takes (\d+ chunks? of each stage|chunks = \d+), not "
                     r"\d+ \[.*", r"a\.csv has 1 chunk a stage, not 2 \[leave --chunks out\]"],
    "schedule.deadlock": [r"deadlock: 2 stages wait for each other in a cycle: stage 0, step 1, 0B0 waits for "
                     r"stage 1, step \d, 1B0; stage 1, step \d, 1F1 waits for stage 0, step \d, 0F1 \[.*"],
    "schedule.doubled": [r"stage 0, step \d, 0B\d: done already by stage 0, step \d, 0B\d \[remove one of them; .*"],
    "schedule.group": [r"stage \d, step \d, \S+, in the group \S+: needs \S+ of that group \[actions of one group must "
                       r"not depend on each other: write them one after the other\]"],
    "schedule.memory": [r"(plan\[1\]\.memory: )?schedule \S+ holds activations of \S+ on stage \d, above the "
                     r"memory limit of \S+ \[raise the limit to .*",
                        r"(plan\[1\]\.memory: )?schedule \S+: one microbatch takes \S+ of stage \d's activation "
                     r"memory, the limit is \S+ \[raise the limit to \d+ at least, .*",
                        r"pp\.memory: the schedule \S+ cannot keep activations within \d+ bytes a rank; .* \[raise "
                     r"the limit to \d+, .*",
                        r"stage 0, step 1, 0F1: takes the activations to 2, above the limit of 1 \[.*"],
    "schedule.microbatches": [r"(plan\[1\]\.schedule: )?schedule \S+ is (for|made for) \d+ microbatch(es)?, (but a "
                     r"step|the plan) has \d+ \[.*"],
    "schedule.missing": [r"stage \d never does \d[FBIW]\d(, .*)? \[each microbatch goes through each virtual stage "
                     r"once: .*"],
    "schedule.order": [r"stage 0, step 0, 0B0: comes before stage 0, step 1, 0F0, which it needs \[move it behind "
                     r"what it needs\]"],
    "schedule.stages": [r"schedule \S+ is for 1 stage, but there are 2 \[.*", r"plan\[1\]\.schedule: schedule "
                     r"good\.csv has 2 rows for pp\(3\) \[a row is a stage: .*",
                        r"plan\[1\]\.schedule: the schedule function uses \d+ virtual stages; pp\(\d+\) with \d+ "
                     r"chunks has \d+ \[set chunks, .*"],
    "run.exit": [r"On rank \d: \w+ \(observers\[\d\]\), called after step \d, called exit\(\), which ends the process in "
                 r"the middle of the run \[throw mw::Error instead.*\]"],
    "run.hang": [r"(On rank \d+: )?ranks? [\d, to and]+ (has|have) not come back from what (it is|they are) on, so that this process "
                 r"ends now.* \[.*\]"],
    "run.not-finite": [r"(On rank \d+: )?the (loss|gradient norm) of step \d+ is (NaN|-?Inf), and its update was skipped.* \[a lower "
                       r"learning rate, clip, .*"],
    "run.not-finite-once": [r"(On rank \d+: )?the (loss|gradient norm) of step \d+ is (NaN|-?Inf), and its update was skipped; "
                            r"computed again, all its tensors are finite \[start it again, from a checkpoint; .*"],
    "runs.baseline": [r"--baseline \w+: none of these runs \[(did you mean|they are: ).*"],
    "runs.none": [r".*: there are no runs \[a script's log = .*"],
    "runs.several": [r".* has \d+ runs \[name one of them: .*"],
    "runs.unreadable": [r".*: .+ \[name a run file: what a script's `log` names\]"],
    "script.argument": [r"mw\.update: .* \[.*\]",
                        r"\w+: frozen must be true or false; got .* \[with frozen = true nothing trains its weights\]",
                        r"m\.\w+: a graph has no such value \[it has m\..*", r"(the lane .*|over): there is no axis \".*\", in this plan or of a strategy that ships \[(did you mean .*\?.*|the plan's "
                        r"axes are .*)\]",
                        r"mw\.bar_chart: .* \[for example mw\.bar_chart \{ file = .*", r"mw\.load takes the path of a run file or of a folder of runs; got [\w ]+ \[for example .*",
                        r"\w+ takes \w+(, \w+)*; got \d+ values? \[.*", r"a value . a value or a number; got a \w+ \[x . y\]",
                        r"a value has a number as its power; got a \w+ \[x \^ 2; .*", r"a value . -?(nan|inf): the number is not finite \[x . 2\]",
                        r"the weight \w+ has no dims \[m:weight .*",
                        r"layers takes a whole number from 1 to 4096; got .* \[for layer .*", r"layers within a layer \[a loop .*",
                        r"weight takes its name and its dims; got a \w+ \[m:weight .*",
                        r"linear: with a weight of the model it takes no \w+ \[m:weight .*",
                        r"\w+ has no \w+ \[it has .*", r"\w+\.\w+ is a \w+; got a \w+ \[left out, it is .*",
                        r"\w+: a value of another (layer|model).* \[a block computes .*",
                        r"\w+: the name [\w.]+ says that layers share its parameters, .* \[name it otherwise, .*",
                        r"the lane .* has nothing left that is \{ .* \} \[((the next one is )?instruction \d+, .*|did you mean .*\?|"
                        r"\w+ is one of .*|none of these instructions has any \w+|there are .*; none is all of it)\]",
                        r"the lane .*:\w+: it is a lane of a braid that is woven already \[take from .*",
                        r"a lane has no \w+ \[(it has name, |a lane is no list: ).*",
                        r"\w+ of a lane is called with a colon \[write .*",
                        r"mw\.zip takes lists; argument \d+ is .* \[write .*",
                        r"(the lane .*:(take|has)|code:each|over)\.\w+: there is no (code|piece|move|segment) \".*\" \[(did you mean .*\?|there are: .*)\]",
                        r"the lane .*:has: there is no op of that kind \[did you mean \"\w+\"\?\]",
                        r"(the lane .*:(take|has)|code:each|over): an instruction has no \w+ \[(did you mean .*|there are: .*)\]",
                        r"(the lane .*:(take|has)|code:each|over)\.\w+: (it is|a range|a list|no number|the list|at_\w+ is) .* \[.*",
                        r"the lane .*:(take|has): last is true or false; got .* \[write last = true\]",
                        r"(the lane .*:(take|has)|code:each|over): it says of no instruction which one it means \[write .*",
                        r"the lane .*:(take|has) takes a table; got \w+ \[write .*",
                        r"the weave .* on stage \d+: the lane .*: instruction \d+, .*, stands before instruction \d+, .*; a weave can only merge \[keep .*",
                        r"the weave .* on stage \d+: entry \d+ of the list is no instruction of a lane \[return instructions as .*",
                        r"the weave .* on stage \d+: its function returned a \w+ \[take instructions from the lanes .*",
                        r"mw\.weave: name is a text; got \w+ \[write .*",
                        r"mw\.weave takes a table with a function `order` \[write .*",
                        r"mw\.schedule takes a function, or a name and a function.* \[.*",
                        r"the plugin kit registers backwards, .*, tiny, turns, and nothing named loin \[did you mean \"lion\"\?\]",
                        r"the plugin dp registers bf16, dp, int8, powersgd, and nothing named powersdg \[did you mean \"powersgd\"\?\]",
                        r"the plugin tp registers tp, and nothing named way \[write tp \{ … \}; .*"],
    "script.caught": [r".*: nothing was (planned|verified|swept): mw\.\w+ was called( \d+ times)? and failed, and the script caught the "
                      r"error \[print what pcall returned .*"],
    "script.error": [r"attempt to .* \(\w+ '\w+'\) \[.*", r"stack overflow.* \[.*", r"(On rank \d+: )?no( \w+)* "
                     r"\[.*", r"unexpected symbol near <eof> \[\]",
                     r"(On rank \d+: )?attempt to .*", r"not enough memory \[.*"],
    "script.no-verb": [r".*: nothing was swept: the script does not call mw\.sweep \[give a script .*",
                       r".*: nothing was swept: the script calls mw\.train before any mw\.sweep \[meshwright run does both, .*",
                       r".*: nothing was (planned|verified): the script calls neither mw\.train nor "
                     r"mw\.(plan|verify) \[give a script that calls mw\.train .*"],
    "script.table": [r"(this table|[\w.]+) has the key \".*\\x00.*\", which holds the byte 0 \[keys are names, or 1, 2, 3, …\]"],
    "script.unknown": [r"(the result of mw\.\w+|predicted) has no field \w+ \[(did you mean \"\w+\"\?|it has .*)\]",
                       r"there is no mw\.\w+ \[.*"],
    "script.unreadable": [r".*: (there is no such script|this is a (folder|device|named pipe), not a script|this is compiled Lua, and "
                     r"scripts are text) \[.*"],
    "search.batch": [r"batch: \d+ sequences? cannot be split over the data's ranks of any mix of \d+ ranks \[nearest: batch = \d+\]"],
    "search.cluster": [r"cluster is missing: a search is for described hardware \[cluster = .*"],
    "search.memory": [r"memory: none of \d+ candidates fits \d+ ranks of .*; the nearest is plan = .*: .*, .* too much \[.*",
                      r"memory: of \d+ candidates, every one that fits would run out of a device's .*: .* in use, .* too much \[devices with .*",
                      r"cluster\.host\.capacity: none of \d+ candidates fits .* in the host memory of a node, .* too much \[more nodes, .*"],
    "search.software": [r"\w+: the software of the stack \S+ can run no candidate: .* \[name what it has, another stack, .*"],
    "search.microbatch": [r"microbatch: (\d+ divides the sequences of a rank in no|none of \d+(, \d+)+ divides the sequences of a rank in any) mix of \d+ ranks: of a batch of \d+ it has "
                          r".* \[nearest: microbatch = \d+( or \d+)?\]"],
    "search.none": [r"no mix of .* on \d+ ranks is possible: (these have no axes that make so many|of \d+ candidates none can be planned "
                    r"whole.*|((\d+ (was|were) refused(, the first as .*)?|\d+ ha(s|ve) more chunks, .*|.* not tried|\d+ layers make .*|the software of the stack .* lacks .*)(; )?)+) "
                    r"\[(allow more .*|((nearest: ranks = \d+( or \d+)?|schedules of fewer chunks, .*|of the first that was refused: .*)(; )?)+)\]"],
    "set.form": [r"--set steps is not of the form key=value \[for example --set steps=20 .*"],
    "set.value": [r"there is no (cluster|stack) \S+ \[(did you mean \".*\"\? )?there are .*\]", r".*unexpected symbol .* \[the value is .*",
                  r".*these are 2 values, of which a key takes one; .* \[the value is a number, a word, or a Lua "
                  r"expression\]"],
    "sort.field": [r"--sort \w+: a run has no field \"\w+\" \[(did you mean|there are: ).*"],
    "sweep.axis": [r"over\S* has no values \[give it some, .*", r"over\S* is one value, .* \[an axis is a list .*",
                   r"over\S*\[\d\] is the same as over\S*\[\d\]: .* \[leave it out; .*",
                   r"repeats: the cells have seeds of their own, from over \[.*"],
    "sweep.like": [r"(same_loss_as|baseline): no cell and no value of an axis is called \".*\" \[.*"],
    "sweep.only": [r"only: no cell has \".*\" in its name \[.*"],
    "sweep.own": [r"(base|over)\.\w+: each cell sets this key itself \[leave it out: .*"],
    "sweep.set": [r"\w+ is set by the axis over\.\w+, cell by cell \[choose .*"],
    "sweep.verb": [r"\w+ cannot run a sweep: its cells can only be trained, predicted, proved or verified \[.*"],
    "trace.missing": [r"run\.h5: it has no steps: .* \[.*", r"run\.h5: --step -?\d+: it has steps 0 to 3 "
                     r"\[nearest: --step \d\]",
                      r".*(/actions has no rows of step|no /predicted_actions).* \[.*--predicted.*"],
    "usage.command": [r"there is no command \".*\" \[(did you mean \"\w+\"\?|commands: .*)\]"],
    "usage.missing": [r"report: no file to write is named \[-o report\.html, --figures FOLDER, or --watch\]", r"plugins show: NAME is missing \[see meshwright plugins show --help; .*", r"--microbatches is missing \[for example: meshwright schedule .*", r"trace: no file to "
                     r"write is named \[-o trace\.json .*"],
    "usage.option": [r"--(sandbox|max-restarts): a script in a sandbox .* \[leave --[\w-]+ out.*\]",
                     r".* \[(did you mean \"--\w+\"\?|see meshwright (\w+ )*--help)\]",
                     r".* \[a key of the experiment is set by --set \w+=…\]",
                     r"chaos: a script from standard input cannot be run twice \[write it into a file\]",
                     r"--launcher \".*\" starts the run's processes, and --processes \d+ would too \[leave one of the two out\]"],
    "what-if.form": [r"--what-if \".*\" is not of the form knob=value,value \[for example --what-if 'node\.bandwidth .*"],
    "what-if.knob": [r"\S+: there is no such value to change \[(did you mean \".*\"\?|for example network\.nic, .*)\]",
                     r"\S+: the experiment names no (cluster|stack) \[--(cluster|stack) NAME, .*\]",
                     r"\S+: the (cluster|stack) says none, and there is nothing to multiply \[give a value: .*\]",
                     r"\S+: the experiment leaves out \"\w+\", whose key it is \[write \w+ in the script, with its keys\]",
                     r"\S+: it has no single value to change \[change a key in it: \S+\.KEY\]",
                     r"\S+: is 0, and a factor leaves it so \[give a value: .*\]",
                     r"\S+: an entry of a list takes values, and no factor \[--what-if '\S+=2,4'\]"],
    "what-if.value": [r"\S+: \S+ times \S+ is \S+, and it is a whole number \[nearest: \[\"\S+\"\] = \d+\]",
                      r"\S+: x: got .* \[a factor above 0, .*\]", r"\S+: got .* \[a number.*\]",
                      r"\S+: (is .*, which no factor multiplies|has no value here that a factor could multiply) \[give a value: .*\]"],
    "where.error": [r"--where .*: .* \[for example 'loss < 2\.5 .*"],
    "where.field": [r"--where .*: the mixes do not differ in \"\w+\" \[(did you mean|they differ in: ).*",
                    r"--where .*: a run has no field \"\w+\" \[(did you mean|there are: ).*"],
    "where.syntax": [r"--where .*: it is no Lua expression: .* \[(two values are compared with ==\]|for example .*)"],
    "usage.value": [r"--(rows|columns) \S+: the mixes do not differ in \".*\" \[(did you mean \".*\"\?|there are: .*|the mixes "
                    r"differ in no key|the width of the figures is --width, in inches)\]",
                    r"--(rows|columns): .* and .* would be one bar, called .* \[(add \S+ to --rows, or choose|choose one of "
                    r"them) with --where\]",
                    r"--names .*: (no mix, value or axis is called \".*\"|it is not OLD=NEW) \[(did you mean \".*\"\?|there "
                    r"are: .*|for example .*)\]",
                    r"--where .*: no mix meets it, of \d+ \[report without --where shows all of them .*\]",
                    r"--communicator threads: \d+ processes that nothing connects would each run all of the script, .* "
                    r"\[leave --communicator out, .*",
                    r"--communicator \w+: there is no communicator \".*\" \[(did you mean \"\w+\"\?|there are .*; others by --plugin-path)\]",
                    r"--sandbox-device \w+: no plugin's file is named \w+\.so \[(did you mean \"\w+\"\?|there are: .*)\]",
                    r"--sandbox-device \w+: there is no device \"\w+\" \[.*devices: cpu, .*\]",
                    r"--baseline \w+: no mix or cell is called that \[(there are: .*|did you mean .*)\]",
                    r"--kinds \S+: there is no fault of that name \[(did you mean .*|there are .*)\]",
                    r"--kinds \S+: .* \[leave it out, or change the plan or --processes\]",
                    r"--times takes three positive numbers \[F,I,W: .*",
                    r"--option \".*\" says no key and value \[for example: --option pair=true\]",
                    r"--option \S+: \S+ is a file, and a file has no options \[leave --option out, or name a scheduler\]"],
    "watch.port": [r"--port \d+: cannot listen there: .* \[name another port, or leave --port out .*\]"],
    "weave.axis": [r"(plan\[\d\]\.)?weave\.axes: the plan has no axis \"\w+\" \[its axes are .*"],
    "weave.times": [r"(plan\[\d\]\.)?weave: the weave hide needs predicted times, and the plan names no device \[name one, "
                    r"as cluster = .*"],
}


def check(line):
    """That a JSON line of a problem has a listed code, and says what that code says."""
    code, said = line["code"], f'{line["message"]} [{line["hint"]}]'
    assert code in CODES, f"docs/errors.md does not list {code}"
    assert any(re.fullmatch(form, said, re.DOTALL) for form in MESSAGES[code]), f"{code}: {said}"
