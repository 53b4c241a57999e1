-- Annotations for editors of what no option declares. `meshwright lua-types` writes them behind
-- those that it makes; nothing is run of this file.
---@meta _

---@class meshwright
local mw = {}

---@class meshwright.Model
---@class meshwright.Data
---@class meshwright.Optimizer
---@class meshwright.Schedule
---@class meshwright.Strategy
---@class meshwright.Microbatch
---@class meshwright.Hook
---@class meshwright.Scheduler
---@class meshwright.Weave
---@class meshwright.Recompute

---What a verb returns. A field that it cannot have is an error.
---@class meshwright.Result
---@field kind string
---@field text string what print shows

---What `observe` is told of a step.
---@class meshwright.Facts
---@field loss? number nil if no label of the step counts
---@field grad_norm number before clipping
---@field lr number
---@field tokens integer of the step
---@field seconds number of the step
---@field held_out_loss? number where the step ended with an evaluation

---@class meshwright.BarChart
---@field file string where to: an HTML file
---@field title? string
---@field unit? string of the numbers
---@field series string[] what a group's bars show, in order
---@field bars (string|number)[][] a group each: its name, and a number for each of the series

---Writes a page of horizontal bars and their numbers.
---@param chart meshwright.BarChart
---@return string file
function mw.bar_chart(chart) end

---Plans and prices the experiment with one value after another changed: of the cluster
---("network.nic"), the stack ("stack.host"), the model ("model.layers"), "batch", "sequence", …
---A name that ends in " x" is given factors.
---@param experiment meshwright.Experiment
---@param knobs table<string, number|string|boolean|(number|string|boolean)[]> { ["node.bandwidth x"] = { 0.5, 2 }, batch = 512 }
---@return meshwright.What_ifResult
function mw.what_if(experiment, knobs) end

---Hardware that a plan is priced for: of clusters/, or a file by its path.
---@param name string
---@param changes? table of its keys: { nodes = 8 }
---@return table
function mw.cluster(name, changes) end

---Failures of a run on many devices. Times in seconds.
---@class meshwright.GoodputRequest
---@field plan? meshwright.Result what mw.plan returned; or step_seconds and devices
---@field step_seconds? number
---@field devices? number
---@field mtbf? number between failures of one device
---@field checkpoint_seconds number that training stands still for each
---@field restart_seconds? number from a failure to the first step after it
---@field interval_seconds? number between checkpoints; left out: the best
---@field days? number to simulate, at least
---@field seed? integer
---@field causes? table<string, { mtbf: number, restart_seconds: number }> of failures, instead of mtbf and restart_seconds
---@field stragglers? { mtbf: number, seconds: number, slowdown: number } slow devices

---@class meshwright.Goodput
---@field kind string
---@field effective number share of the time in which steps are made that are kept
---@field closed_form number the same by Daly's formula
---@field lost { repeated: number, checkpoints: number, restarts: number, stragglers: number }
---@field causes table<string, { failures: integer, lost: number }> simulated, and the share of time lost
---@field interval_seconds number
---@field interval_steps integer
---@field young_seconds number
---@field daly_seconds number
---@field best_seconds number
---@field failure_seconds number between failures of the run
---@field failures_per_day number
---@field steps_per_day number
---@field simulated_failures integer

---The share of its time in which a run that fails and restarts gets on.
---@param request meshwright.GoodputRequest
---@return meshwright.Goodput
function mw.goodput(request) end

---A line on a plan's step beside the one that was published of it; of a variant, which --set or
---another option made, that no figure is for it.
---@param plan meshwright.PlanResult
---@param seconds? number of the published step; none is known if left out
---@param note? string what is to be said of that figure
---@return string
function mw.published(plan, seconds, note) end

---The software on a cluster.
---@param name string
---@param changes? table
---@return table
function mw.stack(name, changes) end

---A run's result, read back from its file: what mw.train returned, with its steps and metrics.
---Of a folder of runs, a sweep's too, a list of them.
---@param file string a run file, the folder of a run or of a sweep, or a folder of these
---@return meshwright.LoadedResult|meshwright.LoadedResult[]
function mw.load(file) end

---What a pipeline schedule is asked for. Virtual stages and microbatches count from 0 as in
---"2F0"; the lists have an entry for each virtual stage.
---@class meshwright.PipelineRequest
---@field stages integer
---@field chunks integer virtual stages of each stage
---@field microbatches integer
---@field times { forward: number, dgrad: number, wgrad: number }[] in proportion
---@field memory? number limit of a stage's activations, bytes
---@field bytes? { forward: number, dgrad: number }[] what F leaves, and what I still leaves for W

---A pipeline schedule of one's own, for a pipeline's `schedule = …`: a list with the actions of
---each stage, `"0F0 0F1 0B0 0B1"`.
---@overload fun(order: fun(s: meshwright.PipelineRequest): string[]): table
---@param name string messages and drawings show it
---@param order fun(s: meshwright.PipelineRequest): string[]
---@return table
function mw.schedule(name, order) end

---An instruction, as a weave's function sees it; what does not apply is nil.
---@class meshwright.WeaveInstruction
---@field code string "compute", "start", "wait", … as `plan --program` lists them
---@field piece? string "forward", "backward", "dgrad", "wgrad"
---@field op? string of what it computes, or of what its transfer serves
---@field kind? string the op's kind; of an exchange of experts' rows "dispatch" or "combine"
---@field layer? integer
---@field label string
---@field phase string
---@field bucket? string
---@field move? string "all-to-all"
---@field axis? string
---@field bytes? number that a rank sends
---@field stream? string of a transfer, where a pass has put it on one
---@field reads string[] names of slots
---@field writes string[]
---@field seconds? number on the plan's device, where that is known

---A condition on a lane's instructions, for `take` and `has`: as of a pass, with two keys more.
---@class meshwright.WeaveFilter: meshwright.Which
---@field through? string|string[] the instruction's code, by another name
---@field last? boolean the last one that matches, not the first

---A work that shares a stage with others, or a part of one.
---@class meshwright.Lane
---@field name string "forward.1"
---@field kind string "forward", "backward", "dgrad", "wgrad"
---@field vstage? integer
---@field layer? integer of a part
---@field take fun(self: meshwright.Lane, filter: meshwright.WeaveFilter) takes all up to the first that matches, and that one
---@field has fun(self: meshwright.Lane, filter: meshwright.WeaveFilter): boolean whether such an instruction is left
---@field rest fun(self: meshwright.Lane) takes all that is left
---@field layers fun(self: meshwright.Lane): meshwright.Lane[] a part for each layer that it computes, in its order
---@field left fun(self: meshwright.Lane): meshwright.WeaveInstruction[]

---Lengths of documents whose logarithm is normal, for `mw.pack { …, lengths = … }`.
---@param options { median: number, sigma: number }
---@return table
function mw.lognormal(options) end

---Lengths of documents that are all equally frequent, for `mw.pack { …, lengths = … }`.
---@param options { least: integer, most: integer }
---@return table
function mw.uniform(options) end

---How works that share a stage are interleaved, for a pipeline's `weave = …`. The function takes
---instructions from the lanes; or it returns them in order, as `left()` has them.
---@param options { name?: string, order: fun(...: meshwright.Lane): meshwright.WeaveInstruction[]? }
---@return meshwright.Weave
function mw.weave(options) end

---Lists side by side, to the end of the shortest.
---@generic T
---@param ... T[]
---@return fun(): ...
function mw.zip(...) end

---Options of x:rope, for rotary angles of longer sequences than a model was trained on at first.
---@param of table { type = "yarn" | "llama3" | "linear", theta = 10000, width = 64, factor = 8, … }: the keys of
---rope_scaling in a config.json, and `width`, the elements of a head that turn
---@return table options
function mw.rope_angles(of) end

---What `over` and `skip` are told of a cell: the axes' values by their keys.
---@class meshwright.CellSoFar
---@field name string
---@field [string] any

---@class meshwright.Cell
---@field sweep string
---@field name string
---@field status "done"|"failed"|"refused"|"skipped"|"predicted"|"running"|"queued"
---@field reason? string
---@field reused boolean found done
---@field values table<string, string> by axis
---@field hash? string
---@field folder? string
---@field seconds? number
---@field losses? number[]
---@field tokens_per_second? number
---@field peak_bytes? integer
---@field predicted? table
---@field timing? meshwright.Timing
---@field reruns? integer how often it was run again, as other programs had the cores
---@field [string] any

---@class meshwright.Sweep
---@field name string
---@field folder string
---@field go fun(self: meshwright.Sweep, options?: meshwright.GoOptions): meshwright.Cell[] runs what is not done
---@field report fun(self: meshwright.Sweep, file: string, options?: table): string

---A grid of experiments, each run in a process of its own.
---@param sweep meshwright.SweepTable
---@return meshwright.Sweep
function mw.sweep(sweep) end

---What the function `graph` of mw.model is given.
---@class meshwright.Graph
---@field tokens meshwright.Value (batch, seq), indices
---@field labels meshwright.Value (batch, seq), indices
---@field positions meshwright.Value (seq), indices
---@field weight fun(self: meshwright.Graph, weight: table): meshwright.Value m:weight { "name", "vocab", "hidden" }
---@field layers fun(self: meshwright.Graph, count?: integer): fun(): integer? for layer in m:layers(4) do … end

---An op of the model, as `where` of a strategy's rule is asked about it.
---@class meshwright.Op
---@field name string "layers.3.mlp.up"
---@field kind string "linear", "attention", …
---@field layer integer -1 before the first, the number of layers after the last
---@field dims string[] all that it computes over
---@field has table<string, true> the same as a set
---@field whole string[] those that no axis may cut in it
---@field inputs string[][] each operand's
---@field outputs string[][]
---@field claimed string[] those that others' rules cut over ranks of this rule's axis

---@class meshwright.Parameter
---@field name string
---@field dims string[]

---What `rules` gets where it is a function.
---@class meshwright.RulesRequest
---@field dims table<string, integer> each dim's size
---@field axes table<string, integer> each axis's ways
---@field layers integer

---A strategy of one's own, made of rules. What it returns stands in a plan as a plugin does:
---`mine(2)`.
---@param strategy meshwright.StrategyTable
---@return fun(options?: table|integer): meshwright.Strategy
function mw.strategy(strategy) end

---@alias meshwright.WhichNumber integer|{ at_least?: number, at_most?: number }

---A condition on instructions. A text may have "*" for anything; a list means any of its entries.
---@class meshwright.Which
---@field code? string|string[] "compute", "start", "wait", …
---@field piece? string|string[] "forward", "dgrad", "wgrad", "backward"
---@field op? string|string[] "layers.3.mlp.up"
---@field kind? string|string[] of the op: "linear"; "dispatch" and "combine" of rows of experts
---@field layer? meshwright.WhichNumber|meshwright.WhichNumber[]
---@field label? string|string[]
---@field phase? string|string[] "forward", "backward", "recompute", "gradients", …
---@field move? string|string[] "all-gather", …
---@field axis? string|string[] by name or role
---@field bucket? string|string[] by name, or a pattern that all its parameters fit
---@field bytes? meshwright.WhichNumber|meshwright.WhichNumber[]
---@field stream? string|string[]
---@field segment? string|string[]
---@field reads? string|string[]
---@field writes? string|string[]
---@field optional? boolean it may match nothing

---An instruction of the code that a pass edits. Its verbs return by how many places they moved it.
---@class meshwright.Instruction
---@field code string
---@field piece? string
---@field op? string
---@field kind? string
---@field layer? integer
---@field label string
---@field phase string
---@field move? string
---@field axis? string
---@field bucket? string
---@field bytes? integer that the stage's first rank sends
---@field segment string
---@field reads string[]
---@field writes string[]
---@field hoist fun(self: meshwright.Instruction, how?: { over?: meshwright.Which, by?: integer }): integer
---@field sink fun(self: meshwright.Instruction, how?: { over?: meshwright.Which, by?: integer }): integer
---@field before fun(self: meshwright.Instruction, other: meshwright.Instruction): integer
---@field after fun(self: meshwright.Instruction, other: meshwright.Instruction): integer
---@field stream fun(self: meshwright.Instruction, name: string): integer

---The code of a segment.
---@class meshwright.Code
---@field segment string "forward", "backward", …
---@field vstage integer
---@field stage integer
---@field each fun(self: meshwright.Code, which: meshwright.Which): fun(): meshwright.Instruction?
---@field list fun(self: meshwright.Code, which: meshwright.Which): meshwright.Instruction[]

---@class meshwright.Pass
---@field name string
---@field segments? string[] "forward", "backward", "dgrad", "wgrad", "braid", "gather", "reduce", "totals", "update"
---@field changes? "order"|"placement"|"numerics"
---@field edit? fun(code: meshwright.Code) for each segment of each stage
---@field directives? table[]

---Moves instructions of a plan's program, as far as dataflow allows. Stands in a plan, or in
---`passes` of mw.strategy.
---@param pass meshwright.Pass
---@return meshwright.Strategy
function mw.pass(pass) end

---Edits that need no function: { "order", which, before = which }, { "stream", which, name },
---{ "budget", which, n }, { "issue", which, layers_ahead = n },
---{ "reduce", { bucket = … }, after = … }.
---@param directives table[]|{ name?: string, segments?: string[] }
---@return meshwright.Strategy
function mw.directives(directives) end

return mw
