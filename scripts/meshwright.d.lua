---@meta meshwright
-- Made by `meshwright lua-types` from the options that the program declares. Do not edit.

---@class meshwright
local mw = {}

---@class meshwright.Predicted
---@field ranks integer
---@field parameters integer of the model, each once
---@field flops_per_step number of the model
---@field hardware_flops_per_step number with what is computed again
---@field memory table[] bytes by category and peak, of each stage's fullest rank; scratch_basis says whether kernels' scratch is measured or estimated; on devices of several kinds also device, its name, and device_memory, its bytes
---@field memory_basis string counted, from the program; or estimated, where kernels' scratch is too large to be tried
---@field peak_bytes integer of the rank with the most, as a training's
---@field communication table[] axis, op, phase, calls, bytes, seconds, exposed_seconds of a rank and step, and basis, how the seconds are known; with stages seconds and exposed_seconds of the stage that spends most, and mean_exposed_seconds of all
---@field priced_for? string the machine of the times; without one there are no times
---@field idle_devices? integer of the cluster: those that the plan has no rank for
---@field pitfalls? string[] mistakes of the mix, each with the plan that avoids it and what that takes
---@field cannot_run? string[] what of the plan the software of the stack cannot run, a phrase each
---@field undeclared_work? string[] ops that declare no FLOPs, and how they are priced, a sentence each
---@field step_seconds number
---@field step_basis? string measured, fitted or beyond: how the step's time is known, the worst of what makes more than a twentieth of it
---@field compute_basis? string measured, fitted or beyond: how the time of what devices compute is known
---@field step_error? number by how much steps of the calibration's own mixes were mispredicted on average, as a share
---@field cpu_seconds? number of all ranks' threads in a step, where they share cores
---@field compute_seconds number the stages' mean, as are exposed_seconds and exposed_host_copy_seconds: with bubble_fraction of the step they add up to it
---@field exposed_seconds number of communication that nothing hides
---@field stages? table[] stage, compute_seconds, exposed_seconds, exposed_host_copy_seconds, bubble_seconds of each, which add up to the step
---@field host_copy_seconds? number of a rank's copies to and from host memory beside what its device computes, on a cluster
---@field exposed_host_copy_seconds? number of those, what nothing hides
---@field host_update_seconds? number of the updates that the host makes beside what a rank's device computes, on a cluster
---@field exposed_host_update_seconds? number of those, what nothing hides; it is in compute_seconds
---@field outer? table of replicas that differ: { every, fragments, bytes, seconds }, an outer step of each fragment together
---@field bubble_fraction number of a step, in which a stage waits
---@field tokens_per_second number
---@field tokens_per_second_per_device number
---@field peak_flops number of all devices: what MFU is a fraction of
---@field mfu number attention included
---@field mfu_6n number 6 x parameters x tokens
---@field hfu number
---@field reported_bytes? integer that a driver would report of the fullest rank's device, where a stack or cluster says so
---@field reported_basis? string fitted or beyond: how what is beside the program is known
---@field beside_program? table<string, integer> what of those are no bytes of the program: gradients, loss, reserve, communicators, context
---@field recompute_frees_bytes? integer where anything is recomputed: bytes that the fullest rank would hold more without
---@field recompute_costs_seconds? number where anything is recomputed: by how much a step takes longer for it
---@field recompute_stages? table<string, integer>[] where recompute fits memory: of each stage in how many of its first layers each part of a layer is made again
---@field recompute_alike_seconds? number where stages differ in that: what a step would take with the same choice for all of them
---@field memory_needed integer bytes of all ranks that share a memory
---@field memory_limit? integer bytes that devices have, where that is known
---@field host_needed? integer bytes in host memory of the node that needs most, on a cluster
---@field host_limit? integer bytes of host memory that a node has, where the cluster says so
---@field fits? boolean in both; nil where it is not known what there is
---@field nearly_full? boolean fits, and fills more than 95 % of that, or of rank_memory_limit
---@field held_out_seconds? number of one evaluation

---@class meshwright.Timing
---@field cores integer of the machine
---@field wanted_cores integer that the ranks keep busy
---@field others_cores? number cores that other programs and other guests of the hypervisor had, on average
---@field throttled_cores? number cores that a limit of the control group kept from the run, on average
---@field clock? number Hz of the cores, on average
---@field steps integer after the warm-up
---@field disturbed_steps integer of those, steps that lacked more than a tenth of the wanted cores
---@field disturbed boolean too few steps had the cores to themselves: wall seconds cannot be relied on
---@field step_seconds? number median of the steps that were not disturbed; of all, if too few were not
---@field step_error? number standard error of that, as a share
---@field cpu_seconds? number of cores, median of a step
---@field cpu_error? number standard error of that, as a share

---@class meshwright.LoadedResult: meshwright.Result
---@field kind "train"
---@field status "done"|"failed"|"interrupted"
---@field reason? string why it failed, or ended before its last step
---@field plan string as the command plan prints it
---@field plan_hash string of the programs, 16 hex digits
---@field ranks integer
---@field steps integer finished
---@field losses number[] of every step
---@field grad_norms number[] of every step, before clipping
---@field batches? integer[] sequences of every step, where they differ
---@field step_seconds number median after the warm-up: timing.step_seconds
---@field tokens_per_second number of the median step
---@field cpu_seconds_per_step number of the whole process
---@field timing meshwright.Timing what else used the cores, and what steps take without it
---@field parting? table of the measured step from the predicted one: share; why: busy, others_unknown, fewer_cores, not_calibrated; text
---@field mfu number
---@field bubble_fraction number of all ranks' time: waiting for another stage
---@field startup_seconds number from the process's start to the first step
---@field peak_bytes integer of the rank with the most; beside it predicted.peak_bytes
---@field memory table<string, integer> peak bytes by category, of the rank with the most
---@field communication table[] axis, op, phase, calls, bytes, seconds of a rank and step
---@field held_out? table[] step, loss, tokens, seconds of each evaluation
---@field held_out_loss? number of the last evaluation
---@field loss_scale? number of the last step
---@field skipped_steps? integer[] left out, as gradients overflowed or no label counts
---@field steps_without_labels? integer[] in which no label counts
---@field checkpoints? table path; how many were written; the last one's step and bytes; waited_seconds, write_seconds of all; failed
---@field resumed? table step, from, mix: the checkpoint that the run went on from
---@field experts? table layers: choices and rows of each expert; imbalance: the fullest expert's choices over the mean; dropped; rank_imbalance: of the fullest rank in any step, what imbalance = predicts for; note: that in words, where predictions suppose otherwise
---@field check? table what check = true looked at
---@field predicted meshwright.Predicted the same run's prediction
---@field restarts? integer how many starts of the script have failed before this one
---@field last_collectives? table[] of a run that failed: where each rank was
---@field log? string the run file
---@field folder? string the run folder
---@field tensorboard? string the folder with event files
---@field export? string the folder with the weights after the last step
---@field notes? string[] what people should know of the data and weights that are read, a sentence each
---@field name string the experiment's: given, or the plan's mix
---@field hash string of all that decides its numbers, 16 hex digits
---@field hash_without_seed string the same without the seed: runs for which it is equal are repeats
---@field seed integer
---@field experiment table every key with its default, --set applied
---@field changed? string[] keys to which --set, --cluster and --stack gave other values than the script
---@field created string "2026-11-22T13:00:00Z"
---@field host string
---@field versions table<string, string>
---@field per_step table<string, any[]> the columns of /steps, a list each
---@field series table<string, number[]> what observe returned, along series.step
---@field account? table of a run with account = true: where the seconds of a step went: step, seconds, ranks, limit_seconds, products_alone_seconds, kernels and bytes, parts, rows, beside; bytes a second that copies have
---@field plan_description table mesh, microbatches and schedule, as /plan has them
---@field sweep? string the name of the sweep that it is a cell of
---@field values? table<string, string> what the sweep set
---@field text string what print shows

---@class meshwright.TrainResult: meshwright.Result
---@field kind "train"
---@field status "done"|"failed"|"interrupted"
---@field reason? string why it failed, or ended before its last step
---@field plan string as the command plan prints it
---@field plan_hash string of the programs, 16 hex digits
---@field ranks integer
---@field steps integer finished
---@field losses number[] of every step
---@field grad_norms number[] of every step, before clipping
---@field batches? integer[] sequences of every step, where they differ
---@field step_seconds number median after the warm-up: timing.step_seconds
---@field tokens_per_second number of the median step
---@field cpu_seconds_per_step number of the whole process
---@field timing meshwright.Timing what else used the cores, and what steps take without it
---@field parting? table of the measured step from the predicted one: share; why: busy, others_unknown, fewer_cores, not_calibrated; text
---@field mfu number
---@field bubble_fraction number of all ranks' time: waiting for another stage
---@field startup_seconds number from the process's start to the first step
---@field peak_bytes integer of the rank with the most; beside it predicted.peak_bytes
---@field memory table<string, integer> peak bytes by category, of the rank with the most
---@field communication table[] axis, op, phase, calls, bytes, seconds of a rank and step
---@field held_out? table[] step, loss, tokens, seconds of each evaluation
---@field held_out_loss? number of the last evaluation
---@field loss_scale? number of the last step
---@field skipped_steps? integer[] left out, as gradients overflowed or no label counts
---@field steps_without_labels? integer[] in which no label counts
---@field checkpoints? table path; how many were written; the last one's step and bytes; waited_seconds, write_seconds of all; failed
---@field resumed? table step, from, mix: the checkpoint that the run went on from
---@field experts? table layers: choices and rows of each expert; imbalance: the fullest expert's choices over the mean; dropped; rank_imbalance: of the fullest rank in any step, what imbalance = predicts for; note: that in words, where predictions suppose otherwise
---@field check? table what check = true looked at
---@field predicted meshwright.Predicted the same run's prediction
---@field restarts? integer how many starts of the script have failed before this one
---@field last_collectives? table[] of a run that failed: where each rank was
---@field log? string the run file
---@field folder? string the run folder
---@field tensorboard? string the folder with event files
---@field export? string the folder with the weights after the last step
---@field notes? string[] what people should know of the data and weights that are read, a sentence each
---@field name string the experiment's: given, or the plan's mix
---@field hash string of all that decides its numbers, 16 hex digits
---@field hash_without_seed string the same without the seed: runs for which it is equal are repeats
---@field seed integer
---@field experiment table every key with its default, --set applied
---@field changed? string[] keys to which --set, --cluster and --stack gave other values than the script
---@field text string what print shows

---@class meshwright.PlanResult: meshwright.Result
---@field kind "plan"
---@field plan string the mix
---@field plan_hash string of the programs, 16 hex digits
---@field rank_memory_limit? integer bytes, where the experiment has a limit
---@field training_seconds? number that the experiment's tokens take, on a cluster
---@field device_hours? number of all ranks for these
---@field cost? number of these, where a price is given
---@field hint? string what to do where that is too little
---@field notes? string[] what people should know of the data and weights that are read, a sentence each
---@field faults? string[] plugins that were only tried, and broke: what each threw
---@field placements? table under --placements
---@field braids? table[] under --braids: of each its name, stage, weave, and seconds, waited_seconds, apart_seconds and apart_waited_seconds: together, and its works one after the other
---@field kernels table[] of each stage's first rank in a step: kernels that are started, bytes that they read and write, flops, and rows, with the same by name
---@field program? string under --program
---@field pass? table under --diff: pass, strategy, before and after (plan, plan_hash, ranks, sent_bytes, transfers, peak_bytes, step_seconds, exposed_seconds, communication), proved_before, proved, diff, text
---@field by_strategy? table[] under --by-strategy: of each plan that it makes, the same, and added (the strategy that is new in it); or added and refused (why there is no such plan)
---@field name string the experiment's: given, or the plan's mix
---@field hash string of all that decides its numbers, 16 hex digits
---@field hash_without_seed string the same without the seed: runs for which it is equal are repeats
---@field seed integer
---@field experiment table every key with its default, --set applied
---@field changed? string[] keys to which --set, --cluster and --stack gave other values than the script
---@field ranks integer
---@field parameters integer of the model, each once
---@field flops_per_step number of the model
---@field hardware_flops_per_step number with what is computed again
---@field memory table[] bytes by category and peak, of each stage's fullest rank; scratch_basis says whether kernels' scratch is measured or estimated; on devices of several kinds also device, its name, and device_memory, its bytes
---@field memory_basis string counted, from the program; or estimated, where kernels' scratch is too large to be tried
---@field peak_bytes integer of the rank with the most, as a training's
---@field communication table[] axis, op, phase, calls, bytes, seconds, exposed_seconds of a rank and step, and basis, how the seconds are known; with stages seconds and exposed_seconds of the stage that spends most, and mean_exposed_seconds of all
---@field priced_for? string the machine of the times; without one there are no times
---@field idle_devices? integer of the cluster: those that the plan has no rank for
---@field pitfalls? string[] mistakes of the mix, each with the plan that avoids it and what that takes
---@field cannot_run? string[] what of the plan the software of the stack cannot run, a phrase each
---@field undeclared_work? string[] ops that declare no FLOPs, and how they are priced, a sentence each
---@field step_seconds number
---@field step_basis? string measured, fitted or beyond: how the step's time is known, the worst of what makes more than a twentieth of it
---@field compute_basis? string measured, fitted or beyond: how the time of what devices compute is known
---@field step_error? number by how much steps of the calibration's own mixes were mispredicted on average, as a share
---@field cpu_seconds? number of all ranks' threads in a step, where they share cores
---@field compute_seconds number the stages' mean, as are exposed_seconds and exposed_host_copy_seconds: with bubble_fraction of the step they add up to it
---@field exposed_seconds number of communication that nothing hides
---@field stages? table[] stage, compute_seconds, exposed_seconds, exposed_host_copy_seconds, bubble_seconds of each, which add up to the step
---@field host_copy_seconds? number of a rank's copies to and from host memory beside what its device computes, on a cluster
---@field exposed_host_copy_seconds? number of those, what nothing hides
---@field host_update_seconds? number of the updates that the host makes beside what a rank's device computes, on a cluster
---@field exposed_host_update_seconds? number of those, what nothing hides; it is in compute_seconds
---@field outer? table of replicas that differ: { every, fragments, bytes, seconds }, an outer step of each fragment together
---@field bubble_fraction number of a step, in which a stage waits
---@field tokens_per_second number
---@field tokens_per_second_per_device number
---@field peak_flops number of all devices: what MFU is a fraction of
---@field mfu number attention included
---@field mfu_6n number 6 x parameters x tokens
---@field hfu number
---@field reported_bytes? integer that a driver would report of the fullest rank's device, where a stack or cluster says so
---@field reported_basis? string fitted or beyond: how what is beside the program is known
---@field beside_program? table<string, integer> what of those are no bytes of the program: gradients, loss, reserve, communicators, context
---@field recompute_frees_bytes? integer where anything is recomputed: bytes that the fullest rank would hold more without
---@field recompute_costs_seconds? number where anything is recomputed: by how much a step takes longer for it
---@field recompute_stages? table<string, integer>[] where recompute fits memory: of each stage in how many of its first layers each part of a layer is made again
---@field recompute_alike_seconds? number where stages differ in that: what a step would take with the same choice for all of them
---@field memory_needed integer bytes of all ranks that share a memory
---@field memory_limit? integer bytes that devices have, where that is known
---@field host_needed? integer bytes in host memory of the node that needs most, on a cluster
---@field host_limit? integer bytes of host memory that a node has, where the cluster says so
---@field fits? boolean in both; nil where it is not known what there is
---@field nearly_full? boolean fits, and fills more than 95 % of that, or of rank_memory_limit
---@field held_out_seconds? number of one evaluation
---@field text string what print shows

---@class meshwright.VerifyResult: meshwright.Result
---@field kind "verify"
---@field status "done"|"interrupted"
---@field verdict "equal"|"different"|nil nil where it was interrupted
---@field plan string the mix
---@field plan_hash string
---@field precision? "fp64"
---@field max_relative_error? table<string, number> loss, gradients, parameters
---@field worst? string the parameter with the largest error
---@field first_divergence? string op
---@field divergence? string the same in a sentence
---@field note? string
---@field steps? integer
---@field plans? integer of steps that differ, each verified
---@field name string the experiment's: given, or the plan's mix
---@field hash string of all that decides its numbers, 16 hex digits
---@field hash_without_seed string the same without the seed: runs for which it is equal are repeats
---@field seed integer
---@field experiment table every key with its default, --set applied
---@field changed? string[] keys to which --set, --cluster and --stack gave other values than the script
---@field text string what print shows

---@class meshwright.ProveResult: meshwright.Result
---@field kind "prove"
---@field status "done"
---@field verdict string "proved", "refused", or "proved, except: …", which names what of ops could not be tried
---@field plan string the mix
---@field plan_hash string
---@field ranks integer
---@field stages integer of the pipeline
---@field parameters integer of all stages
---@field microbatches integer
---@field instructions integer of all segments of all stages
---@field runs integer of segments, of all stages
---@field rules integer applied: instructions of all runs
---@field seconds number
---@field strict boolean under --strict: collectives block until all have come, and what could not be tried is refused
---@field lemmas integer kinds of ops that the proof takes for right
---@field lemmas_tried integer of those, at small sizes; optimizers' among them
---@field lemma_seconds number
---@field lemma_kinds table[] kind, op, piece, cut, follow, carried, ring of each
---@field notes string[] bounds of the claim: hooks that lose bits
---@field not_tried string[] what of ops could not be tried, and why
---@field refusals table[] code, key, stage, segment, run, microbatch, instruction, ring_step, slot, where, listed, message, axes (axis, needed, found), written, by, missing, twice, mend
---@field plans? integer of steps that differ, each proved
---@field name string the experiment's: given, or the plan's mix
---@field hash string of all that decides its numbers, 16 hex digits
---@field hash_without_seed string the same without the seed: runs for which it is equal are repeats
---@field seed integer
---@field experiment table every key with its default, --set applied
---@field changed? string[] keys to which --set, --cluster and --stack gave other values than the script
---@field text string what print shows

---@class meshwright.CompareResult: meshwright.Result
---@field kind "compare"
---@field status string
---@field verdict "equal"|"different"|nil nil where it was interrupted
---@field a? string the first's mix
---@field b? string the second's mix
---@field plan_hashes? string[]
---@field same_bits? boolean
---@field precision? string[] of both
---@field steps? integer
---@field max_relative_error? table<string, number> loss, gradients, parameters
---@field bound_ratio? number largest error over what rounding explains
---@field nearest? table what comes nearest to its bound
---@field worst? string parameter
---@field first_difference? table of bits
---@field first_divergence? string op
---@field first_beyond? table beyond what rounding explains
---@field divergence? string the same in a sentence
---@field parameter? string the first whose gradient parts
---@field suspect? string
---@field note? string
---@field reported? table errors and bounds of loss and norm
---@field moved_choices? integer tokens that went to other experts
---@field both_off? boolean
---@field text string what print shows

---@class meshwright.SearchResult: meshwright.Result
---@field kind "search"
---@field status "done"|"interrupted"
---@field interrupted boolean stopped by the user: what is there are the best so far
---@field priced_for string the cluster and the stack
---@field ranks integer of each plan
---@field rank_memory_limit integer bytes
---@field host_memory_limit? integer bytes of host memory that a node has, if it is known
---@field candidates integer that were priced
---@field refused integer that the strategies or the model do not allow
---@field fitting integer of the candidates, by the closed form
---@field candidates_per_second number that a core prices, plans of few layers and orders of works included
---@field unsupported boolean what the stack's software cannot run was priced too
---@field left_out string[] what of the request and of options the stack's software lacks, a phrase each
---@field faults? string[] plugins that were only tried, and broke: what each threw
---@field probes integer plans of few layers, of which the closed form has its terms
---@field seconds number all of the search, by the clock
---@field probing_seconds number of a core: plans of few layers, orders of works
---@field pricing_seconds number ... the sums that price the candidates
---@field checking_seconds number ... planning the best whole
---@field best table[] plan (text), entries (a table for plan =), microbatch, recompute, offload, layers (of each virtual stage), predicted (cannot_run among it), fits, room ("", "nearly full", "over", "runs out", "does not fit"), beyond_measured, nearest_measured, megatron and torchtitan (text, before, cannot), closed_form_seconds, closed_form_bytes, closed_form_host_bytes; the first is recommended, the others the fastest first, and what is over behind them
---@field edge table[] of those planned whole: nothing has less memory and is as fast
---@field checked table[] all that were planned whole, in the order of the closed form
---@field why string what limits the best one, and what its neighbours lose
---@field text string what print shows

---@class meshwright.What_ifResult: meshwright.Result
---@field kind "what_if"
---@field plan string the mix, as it is
---@field plan_hash string
---@field name string the experiment's
---@field priced_for string the cluster and the stack, as they are
---@field step_seconds number as it is, as are tokens_per_second, ranks, peak_bytes and fits
---@field tokens_per_second number
---@field ranks integer
---@field peak_bytes integer of the rank with the most
---@field fits? boolean nil where it is not known what there is
---@field basis string of step_seconds: measured, fitted or beyond
---@field rows table[] of each value in its order: knob, given ("x 0.5"), value, shown (the value as print has it), and step_seconds, change (of the step, as a share), tokens_per_second, ranks, peak_bytes, fits, basis (how the step is known), parts (seconds by which each part of the step changes), changed (in words, or why nothing does); or refused (why there is no such plan)
---@field sensitivities table[] of each knob: knob, worth (by what share of the step a tenth more of it changes that), tokens_worth (of tokens_per_second), by (priced, or the slope to which value)
---@field text string what print shows

---@class meshwright.Experiment
---@field model meshwright.Model what is trained: mw.llama { … }, mw.gpt { … }
---@field data meshwright.Data tokens: mw.text { "file", sequence = 128 }, mw.synthetic { … }
---@field sequence? integer tokens of one sample; may stand in data instead (1 .. 2147483647)
---@field plan? meshwright.Strategy[] strategies, in mesh order: the ranks of the last one are adjacent (default [])
---@field ranks? integer how many the plan is to have; a plan of another number is refused. Left out: whatever the product of its ways is (1 .. 2147483647)
---@field batch integer sequences of one step, over all ranks (1 .. 2147483647)
---@field microbatch? integer|integer[]|meshwright.Microbatch|fun(step: integer): integer|integer[]|table sequences that a rank computes at a time (all that it has if left out), a list of each microbatch's, mw.microbatch.fit { … }, mw.microbatch.ramp { … }, or a function of the step that returns one of these, or { batch = …, microbatch = … }
---@field precision? "fp64"|"fp32"|"bf16"|"fp16" of parameters and computation; with bf16 and fp16 the optimizer keeps fp32 masters (default "fp32")
---@field loss_scale? any factor of the loss in backward; a step that overflows is left out: "dynamic" (so in fp16), a number, { init = 65536, growth = 2, backoff = 0.5, interval = 2000 }, or a function(step, scale, overflowed)
---@field reductions? "compute"|"fp32" what reals are summed in over ranks: the precision of computation, or fp32 where that is less (default "compute")
---@field main_gradients? "compute"|"fp32" what gradients are added up and reduced in: the precision of computation, or fp32 where that is less (default "compute")
---@field recompute? any activations that backward recomputes: "none", "selective" (attention), "full", { every = n }, { ops = { … } }, { fit = "8GiB" } or "fit" (what the memory asks for, stage by stage), a plugin's policy, or a function of an op (default "none")
---@field offload? any activations that lie in host memory until backward reads them: "none", "full", { layers = n }, { ops = { … } }, or a function of an op (default "none")
---@field device? string where ranks compute: "cpu", this machine's cores, or each on a device of a platform that a plugin brings, as "cuda" is; where there are more ranks than devices, some share one (default "cpu")
---@field optimizer meshwright.Optimizer mw.adamw { lr = 3e-4 }, mw.sgd { … }
---@field schedule? meshwright.Schedule|fun(step: integer): number of the learning rate: mw.cosine { … }, mw.constant(), or a function of the step
---@field steps integer how many optimizer steps (1 .. 2147483647)
---@field seed? integer of the initial weights and of the order of the data (default 0) (0 .. 9223372036854775807)
---@field weights? string initial weights: a safetensors file or folder with Hugging Face's names
---@field export? any where the weights go after the last step, as a folder that transformers loads: a path, or { path = …, dtype = "bf16", shard = "5GB" }
---@field name? string what the run is called; left out: the plan's mix
---@field log? string the run file (HDF5), or with a "/" at its end a folder for it and for what belongs to it; {name}, {seed} and {hash} stand for the run's
---@field tensorboard? string a folder for event files of TensorBoard: the columns of /steps, what observe returns, memory and bytes; {name}, {seed} and {hash} stand for the run's
---@field overwrite? boolean a log, or events, that are another experiment's may be replaced; a run of the same one replaces its own without it (default false)
---@field checkpoint? table all that a run goes on from, now and then: { path = "checkpoints/{name}", every = 100, keep = 3 }; one more at its end
---@field resume? any true: the run goes on from the newest checkpoint of checkpoint.path, whatever mix wrote it, or begins anew where there is none; { from = "…", changed = true } (default false)
---@field evaluate? table a held-out loss: { data = mw.text { … }, every = 100, batches = 8 }, forward alone by the run's own plan, after so many steps and after the last
---@field cluster? table what a plan is priced for: mw.cluster("selene", { nodes = 8 }), or a table of one's own; this machine if left out, but for a search, which needs one. A run takes from it how many layers its stages have, where they are not given, and nothing else
---@field stack? table the software that a plan on a cluster is priced for: mw.stack("meshwright"), mw.stack("megatron-core"); left out it is plain, without flash attention
---@field tokens? any that the whole training is to see, as 1.4e12 or "1.4T": a plan on a cluster says how long that takes
---@field price? number of a device hour, in any currency: a plan with tokens says what they cost (>= 0)
---@field threads? integer threads of one rank; 0: the cores over the ranks (default 0) (0 .. 4096)
---@field memory? integer|string what a rank may hold; a plan predicted above it is refused, an allocation over it ends the run (1 B .. 1 EiB)
---@field force? boolean start although the ranks are predicted to need more memory than this machine has (default false)
---@field check? any true: test during training that replicas have equal bits, tensors have the planned placement, and nothing is NaN or Inf; names parameters without a gradient. "replicas", or { "replicas", every = 10 }: test only that replicas which last from step to step have equal bits, after every tenth step and the last (default false)
---@field timeout? number how long a rank waits for the others in a collective, and a function of the script or a plugin's observer may take, before the run ends (default 300) (0.001 .. 1000000000)
---@field on_nan? "stop"|"continue" what a loss or a gradient norm that is NaN or Inf does: end the run before the optimizer's step, naming where it comes up first; or nothing. Steps that a loss scale leaves out are neither (default "stop")
---@field trace? any[] steps of which the run file has every op and transfer, for meshwright trace: { 3, 100 }; {}: none. If left out, the third and the last
---@field account? boolean of the steps of `trace` the run file says where their seconds went, beside what the same products take alone and the bytes at the rate of copies, measured before the first step: meshwright runs show FILE --where (default false)
---@field observe? fun(step: integer, facts: meshwright.Facts): table<string, number|boolean>? called after each step with its index and { loss =, grad_norm =, lr =, tokens =, seconds = }; returns { name = number } for the run file; stop = true in it ends the run
---@field observers? any[] who else looks on, in this order: observers of plugins, such as profilers and trackers, and functions as `observe` is one

---What may be chosen, and an experiment.
---@class meshwright.SearchTable
---@field best? integer plans to return (default 5) (1 .. 100)
---@field checked? integer candidates that are planned whole, the best by the closed form (default 24) (1 .. 1000)
---@field unsupported? boolean the software of the stack need not be able to run what is proposed (default false)
---@field ranks? integer that each plan has; the cluster's devices if left out (1 .. 2147483647)
---@field strategies? (string|table)[] names of those that may stand in a plan; all of the plugin path if left out
---@field schedules? string[] of stages: { "1f1b" }; all that are registered if left out
---@field microbatch? integer|integer[] sequences, or a list to choose from; powers of two up to 64 if left out
---@field recompute? any as an experiment's, or a list to choose from; none, selective and full if left out
---@field offload? any as an experiment's, or a list to choose from; none if left out
---@field model meshwright.Model what is trained: mw.llama { … }, mw.gpt { … }
---@field data? meshwright.Data tokens: mw.text { "file", sequence = 128 }, mw.synthetic { … }
---@field sequence? integer tokens of one sample; may stand in data instead
---@field plan? meshwright.Strategy[] a training's: the search does not look at it
---@field batch integer sequences of one step, over all ranks
---@field precision? "fp64"|"fp32"|"bf16"|"fp16" of parameters and computation; with bf16 and fp16 the optimizer keeps fp32 masters
---@field loss_scale? any factor of the loss in backward; a step that overflows is left out: "dynamic" (so in fp16), a number, { init = 65536, growth = 2, backoff = 0.5, interval = 2000 }, or a function(step, scale, overflowed)
---@field reductions? "compute"|"fp32" what reals are summed in over ranks: the precision of computation, or fp32 where that is less
---@field main_gradients? "compute"|"fp32" what gradients are added up and reduced in: the precision of computation, or fp32 where that is less
---@field device? string a training's: the search does not look at it
---@field optimizer? meshwright.Optimizer mw.adamw { lr = 3e-4 }, mw.sgd { … }
---@field schedule? meshwright.Schedule|fun(step: integer): number a training's: the search does not look at it
---@field steps? integer a training's: the search does not look at it
---@field seed? integer a training's: the search does not look at it
---@field weights? string a training's: the search does not look at it
---@field export? any a training's: the search does not look at it
---@field name? string a training's: the search does not look at it
---@field log? string a training's: the search does not look at it
---@field tensorboard? string a training's: the search does not look at it
---@field overwrite? boolean a training's: the search does not look at it
---@field checkpoint? table a training's: the search does not look at it
---@field resume? any a training's: the search does not look at it
---@field evaluate? table a training's: the search does not look at it
---@field cluster table what a plan is priced for: mw.cluster("selene", { nodes = 8 }), or a table of one's own; this machine if left out, but for a search, which needs one. A run takes from it how many layers its stages have, where they are not given, and nothing else
---@field stack? table the software that a plan on a cluster is priced for: mw.stack("meshwright"), mw.stack("megatron-core"); left out it is plain, without flash attention
---@field tokens? any a training's: the search does not look at it
---@field price? number a training's: the search does not look at it
---@field threads? integer a training's: the search does not look at it
---@field memory? integer|string what a rank may hold; a plan predicted above it is refused, an allocation over it ends the run
---@field force? boolean a training's: the search does not look at it
---@field check? any a training's: the search does not look at it
---@field timeout? number a training's: the search does not look at it
---@field on_nan? "stop"|"continue" what a loss or a gradient norm that is NaN or Inf does: end the run before the optimizer's step, naming where it comes up first; or nothing. Steps that a loss scale leaves out are neither
---@field trace? any[] a training's: the search does not look at it
---@field account? boolean a training's: the search does not look at it
---@field observe? fun(step: integer, facts: meshwright.Facts): table<string, number|boolean>? a training's: the search does not look at it
---@field observers? any[] a training's: the search does not look at it

---Trains, and returns what was measured beside what was predicted.
---@param experiment meshwright.Experiment
---@return meshwright.TrainResult
function mw.train(experiment) end

---Resolves the experiment and predicts it without training.
---@param experiment meshwright.Experiment
---@return meshwright.PlanResult
function mw.plan(experiment) end

---Compares the plan with one rank in float64, gradient by gradient.
---@param experiment meshwright.Experiment
---@return meshwright.VerifyResult
function mw.verify(experiment) end

---Proves that the plan's programs compute what one rank would, at any size, without running them; or says at which instruction that fails.
---@param experiment meshwright.Experiment
---@return meshwright.ProveResult
function mw.prove(experiment) end

---Compares two plans of one model on the same weights and tokens: the first op and parameter at which they part, and whether rounding explains it.
---@param a meshwright.Experiment
---@param b meshwright.Experiment
---@return meshwright.CompareResult
function mw.compare(a, b) end

---Recommends a plan for a model on a cluster, and says why.
---@param experiment meshwright.SearchTable
---@return meshwright.SearchResult
function mw.search(experiment) end

---@class meshwright.op.add
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.add_positions
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.as
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field dims? any all dims of the result, in order
---@field [1]? any the same as dims

---@class meshwright.op.attend
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field window? integer tokens that a query sees, itself and those before it; left out: all (1 .. 2147483647)
---@field scale? number of the scores; left out: 1 / sqrt(head_dim) (1e-09 .. 1000000000)
---@field softcap? number scores s become softcap * tanh(s / softcap); the attention is unfused (1e-09 .. 1000000000)
---@field causal? boolean false: a query sees the keys after it too; the attention is unfused (default true)
---@field biased? boolean a fourth value, of any of the dims batch, heads, seq and keys, is added to the scores; the attention is unfused (default false)
---@field sinks? boolean a further value (heads) is one more score of each query, whose share of the softmax goes nowhere; the attention is unfused (default false)
---@field attention? "flash"|"unfused" "unfused" makes scores and softmax as tensors, and keeps the softmax for backward; "flash", the default, keeps no scores

---@class meshwright.op.attention
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field heads? string the dim of the query heads (default "heads")
---@field kv_heads? string that of key and value heads (default "kv_heads")
---@field head_dim? string that of a head's width (default "head_dim")
---@field rope? boolean queries and keys are turned by their positions (default true)
---@field theta? number base of the rotary angles (default 10000) (>= 1)
---@field window? integer tokens that a query sees, itself and those before it; left out: all (1 .. 2147483647)
---@field attention? "flash"|"unfused" "unfused" makes scores and softmax as tensors, and keeps the softmax for backward; "flash", the default, keeps no scores
---@field bias? boolean with biases, of zeros at first (default false)
---@field std? number of the initial weights (default 0.02) (>= 0)

---@class meshwright.op.combine
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.concat
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field into? string a dim as large as the two together
---@field [1]? string the same as into
---@field of? any[] the dims of a and of b that lie along it; left out: their last ones

---@class meshwright.op.contract
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.conv
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field kernel? integer tokens that a token sees, itself and those before it, with a new weight; left out: the weight is a second value, (channels…, kernel) or (channels…, 1, kernel) (1 .. 1024)
---@field [1]? integer the same as kernel
---@field bias? boolean with a bias, of zeros at first, or a third value (default false)
---@field std? number of a new weight; left out: 1 / sqrt(3 kernel), as PyTorch's Conv1d (>= 0)

---@class meshwright.op.cross_entropy
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field weight? number factor of the loss (default 1)
---@field mean_over? integer mean of the labels that count of each so many sequences, and then of these means; left out: of all sequences of a step (1 .. 2147483647)

---@class meshwright.op.distance
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field buckets? integer makes indices in place of numbers: small distances have one each, larger ones share them (4 .. 65536)
---@field [1]? integer the same as buckets
---@field furthest? integer distances from here on have the last bucket (default 128) (4 .. 16777216)
---@field causal? boolean false: the upper half of the buckets is of keys after the query (default true)

---@class meshwright.op.drop_path
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field p? number the share (0 .. 0.9999)
---@field [1]? number the same as p

---@class meshwright.op.dropout
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field p? number the share (0 .. 0.9999)
---@field [1]? number the same as p

---@class meshwright.op.exp
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.expert_linear
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field to? string the dim that it makes of x's last
---@field [1]? string the same as to
---@field bias? boolean with a bias of each expert, of zeros at first (default false)
---@field weighed? boolean a second value, the weights of the rows, multiplies their biases (default false)
---@field hf? string as for linear; after the layer's number, {} stands for the expert's
---@field hf_bias? string the bias's name; left out: hf with .bias for .weight
---@field hf_transposed? boolean the checkpoint has the weight as (experts, in, out) (default false)
---@field hf_part? any[] { 2, 3 }: the second of three parts of the checkpoint's dim out
---@field hf_interleaved? boolean parts have every second row each, or every third … (default false)

---@class meshwright.op.experts
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field top_k? integer experts that a token chooses (1 .. 65536)
---@field [1]? integer the same as top_k
---@field capacity? number an expert takes at most so many times its even share of a sequence's choices, earlier positions first; left out: all (dropless) (0.001 .. 1000000)
---@field chosen_by? "tokens"|"experts" tokens choose experts; or each expert chooses the tokens of a sequence with the highest affinities to it, capacity times an even share of them, so that a token has top_k experts on average (default "tokens")
---@field balance? "aux"|"bias"|"none" how the load of experts is balanced: by a loss of each sequence's choices; by a bias on the choice that moves against the load of each step; not at all (default "aux")
---@field aux_weight? number factor of the balancing loss (default 0.01) (>= 0)
---@field bias_rate? number change of a bias in a step (default 0.001) (>= 0)
---@field z_weight? number factor of a loss that keeps router logits small (default 0) (>= 0)
---@field jitter? number the router's input is multiplied in training by a number drawn in [1 - jitter, 1 + jitter) (Switch Transformer) (0 .. 0.5)
---@field noise? number standard deviation of what is added to router logits in training, drawn from a normal distribution (0 .. 1e+30)
---@field score? "softmax"|"sigmoid" a token's affinity to the experts, from logits (default "softmax")
---@field normalise? boolean the weights of a token's experts sum to one (times scale) (default true)
---@field scale? number factor of the experts' weights (default 1)
---@field logit_bias? boolean the router's logits have a bias, which is trained (default false)
---@field groups? integer equal groups that the experts stand in (1 .. 65536)
---@field group_top? integer groups that a token chooses its experts in: those whose two highest experts sum to most; with softmax, those with the highest expert (1 .. 65536)
---@field width? string the dim of an expert's width (default "expert_ffn")

---@class meshwright.op.gather
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.gelu
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.gelu_erf
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.latent_keys
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field keys string the dim of a key's width
---@field values string the dim of a value's width

---@class meshwright.op.layer_norm
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field eps? number added to the variance (default 1e-05) (>= 0)
---@field hf? string its weight's name in a checkpoint, {} for the layer's number; left out: its own

---@class meshwright.op.learned_positions
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field dim? string how many there are: a dim of the model, no less than the sequence (default "positions")
---@field [1]? string the same as dim
---@field hf? string its weight's name in a checkpoint, {} for the layer's number; left out: its own

---@class meshwright.op.linear
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field to? any the dims that it makes: a name, or a list of names
---@field [1]? any the same as to
---@field from? any the dims that it contracts, x's last; left out: all but batch and seq
---@field bias? boolean with biases, of zeros at first (default false)
---@field std? number of the initial weights (default 0.02) (>= 0)
---@field hf? string its weight's name in a checkpoint, {} for the layer's number; left out: its own
---@field hf_transposed? boolean the checkpoint has the weight as (in, out) (default false)
---@field hf_part? any[] { 2, 3 }: the second of three parts of the checkpoint's weight and bias
---@field hf_interleaved? boolean parts have every second row each, or every third … (default false)

---@class meshwright.op.log
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.lookup
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.map
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field f? string an expression of a, b, …: "a * silu(b) + 1"
---@field [1]? string the same as f

---@class meshwright.op.max
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field over? any the dims: a name, or a list of names
---@field [1]? any the same as over

---@class meshwright.op.mean
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field over? any the dims: a name, or a list of names
---@field [1]? any the same as over

---@class meshwright.op.mlp
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field width? string its dim (default "ffn")
---@field [1]? string the same as width
---@field act? "swiglu"|"gelu" SwiGLU of two linears (gate, up), or GELU of one (up) (default "swiglu")
---@field bias? boolean with biases, of zeros at first (default false)
---@field std? number of the initial weights (default 0.02) (>= 0)

---@class meshwright.op.noise
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field std? number standard deviation (0 .. 1e+30)
---@field [1]? number the same as std

---@class meshwright.op.pool
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field to? string the dim of the groups
---@field [1]? string the same as to
---@field of? string the dim whose neighbours are pooled (default "seq")
---@field by? "mean"|"max" what a group gives (default "mean")

---@class meshwright.op.positions_of
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field dim? string a dim of the model
---@field [1]? string the same as dim

---@class meshwright.op.relu
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.reshape
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field to? any the dims that x's last dims become: a name, or a list of names
---@field [1]? any the same as to
---@field from? any which these are; left out: the last one

---@class meshwright.op.rms_norm
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field eps? number added to the mean square (default 1e-05) (>= 0)
---@field plus? number added to the weight, whose values are then zeros at first (Gemma: 1) (default 0)
---@field hf? string its weight's name in a checkpoint, {} for the layer's number; left out: its own

---@class meshwright.op.rope
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field theta? number base of the angles; left out: 10000 (>= 1)
---@field pairs? "halves"|"neighbours" which elements of a head turn together: i and i + width / 2, or 2 i and 2 i + 1 (default "halves")
---@field width? string a dim as large as the last part of x's last dim that turns; left out: all
---@field first? boolean the first part of x's last dim turns, not the last (default false)
---@field angles? any[] by how much each pair turns from one token to the next; left out: theta ^ (-2 i / width) for pair i, from 0
---@field scale? number of cosines and sines (default 1) (1e-06 .. 1000000)

---@class meshwright.op.route
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field top_k? integer experts that a token chooses (1 .. 65536)
---@field [1]? integer the same as top_k
---@field capacity? number an expert takes at most so many times its even share of a sequence's choices, earlier positions first; left out: all (dropless) (0.001 .. 1000000)
---@field chosen_by? "tokens"|"experts" tokens choose experts; or each expert chooses the tokens of a sequence with the highest affinities to it, capacity times an even share of them, so that a token has top_k experts on average (default "tokens")
---@field balance? "aux"|"bias"|"none" how the load of experts is balanced: by a loss of each sequence's choices; by a bias on the choice that moves against the load of each step; not at all (default "aux")
---@field aux_weight? number factor of the balancing loss (default 0.01) (>= 0)
---@field bias_rate? number change of a bias in a step (default 0.001) (>= 0)
---@field z_weight? number factor of a loss that keeps router logits small (default 0) (>= 0)
---@field jitter? number the router's input is multiplied in training by a number drawn in [1 - jitter, 1 + jitter) (Switch Transformer) (0 .. 0.5)
---@field noise? number standard deviation of what is added to router logits in training, drawn from a normal distribution (0 .. 1e+30)
---@field score? "softmax"|"sigmoid" a token's affinity to the experts, from logits (default "softmax")
---@field normalise? boolean the weights of a token's experts sum to one (times scale) (default true)
---@field scale? number factor of the experts' weights (default 1)
---@field logit_bias? boolean the router's logits have a bias, which is trained (default false)
---@field groups? integer equal groups that the experts stand in (1 .. 65536)
---@field group_top? integer groups that a token chooses its experts in: those whose two highest experts sum to most; with softmax, those with the highest expert (1 .. 65536)
---@field hf? string its weight's name in a checkpoint, {} for the layer's number; left out: its own
---@field hf_bias? string as hf, for the bias on the choice, which a checkpoint may lack

---@class meshwright.op.rsqrt
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.scan
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field chunk? integer tokens whose products are made at a time (default 64) (1 .. 65536)
---@field delta? boolean the gated delta rule, by a rate of each head, a fifth value: the state forgets what it knows of a key before it learns the key's value (default false)

---@class meshwright.op.scatter
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field to? string the dim whose places the indices name
---@field [1]? string the same as to

---@class meshwright.op.shift
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field by? integer tokens further on (default 1) (1 .. 1048576)
---@field [1]? integer the same as by

---@class meshwright.op.sigmoid
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.silu
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.softcap
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field cap? number the largest absolute value (1e-09 .. 1000000000)
---@field [1]? number the same as cap

---@class meshwright.op.softmax
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field over? string the dim whose elements sum to 1
---@field [1]? string the same as over

---@class meshwright.op.softplus
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.split
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field into? any[] two dims, as large together as that dim of x
---@field [1]? any[] the same as into
---@field of? string a dim of x; left out: the last one

---@class meshwright.op.sqrt
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.square
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.sum
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field over? any the dims: a name, or a list of names
---@field [1]? any the same as over

---@class meshwright.op.swiglu
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field weighed? boolean times a weight for each row of gate's last dim, a third value (default false)

---@class meshwright.op.tanh
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights

---@class meshwright.op.weight
---@field name? string of the op and its parameters
---@field frozen? boolean whether nothing trains its weights
---@field dims any its dims: a name, or a list of names
---@field init? "normal"|"ones"|"zeros" its values at first (default "normal")
---@field std? number of normal values (default 0.02) (>= 0)
---@field hf? string its weight's name in a checkpoint, {} for the layer's number; left out: its own

---A value over named dims, in a function of mw.model.
---@class meshwright.Value
---@operator add(meshwright.Value|number): meshwright.Value
---@operator sub(meshwright.Value|number): meshwright.Value
---@operator mul(meshwright.Value|number): meshwright.Value
---@operator div(meshwright.Value|number): meshwright.Value
---@operator pow(number): meshwright.Value
---@operator unm: meshwright.Value
---@field add fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.add|string|number): meshwright.Value, meshwright.Value? a, b -> their sum; also written a + b
---@field add_positions fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.add_positions|string|number): meshwright.Value, meshwright.Value? x (batch, seq, hidden), weight (positions, hidden) -> x plus a row of each position
---@field as fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.as|string|number): meshwright.Value, meshwright.Value? x -> its elements under other dims: another order, one of another name
---@field attend fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.attend|string|number): meshwright.Value, meshwright.Value? q (batch, seq, heads, head_dim), k and v (batch, seq, kv_heads, …) -> (batch, seq, heads, …): attention
---@field attention fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.attention|string|number): meshwright.Value, meshwright.Value? x (batch, seq, hidden) -> the same: q, k, v, rotary positions, causal attention, and the projection back
---@field combine fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.combine|string|number): meshwright.Value, meshwright.Value? rows (experts, batch, seq, hidden), places -> (batch, seq, hidden): the sum of each token's rows
---@field concat fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.concat|string|number): meshwright.Value, meshwright.Value? a (…, first), b (…, second) -> (…, into): one after the other
---@field contract fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.contract|string|number): meshwright.Value, meshwright.Value? x (…, from…), weight (to…, from…) -> (…, to…): the product of two values
---@field conv fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.conv|string|number): meshwright.Value, meshwright.Value? x (batch, seq, channels…) -> the same: a causal convolution of each channel along seq
---@field cross_entropy fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.cross_entropy|string|number): meshwright.Value, meshwright.Value? logits (batch, seq, vocab), labels (batch, seq), or other dims in place of seq -> (): the loss of a label, summed and divided by the labels of a step
---@field distance fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.distance|string|number): meshwright.Value, meshwright.Value? positions (seq), or those of another dim -> (seq, keys): how far a key lies before a query, for a bias of attention
---@field drop_path fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.drop_path|string|number): meshwright.Value, meshwright.Value? x (batch, seq, …) -> the same: in training, a share of samples is zero
---@field dropout fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.dropout|string|number): meshwright.Value, meshwright.Value? x (batch, seq, …) -> the same: in training, a share of elements is zero
---@field exp fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.exp|string|number): meshwright.Value, meshwright.Value? x -> the same dims: e to the power of x
---@field expert_linear fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.expert_linear|string|number): meshwright.Value, meshwright.Value? rows (experts, batch, seq, from) -> (experts, batch, seq, to), with a weight of each expert (experts, to, from)
---@field experts fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.experts|string|number): meshwright.Value, meshwright.Value? x (batch, seq, hidden) -> the same: each token through the experts that it chooses; of the dims experts and expert_ffn
---@field gather fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.gather|string|number): meshwright.Value, meshwright.Value? x (batch, from, …), indices (batch, to…) -> (batch, to…, …): the rows they name
---@field gelu fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.gelu|string|number): meshwright.Value, meshwright.Value? x -> the same dims: GELU in the tanh form
---@field gelu_erf fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.gelu_erf|string|number): meshwright.Value, meshwright.Value? x -> the same dims: GELU in the exact form
---@field latent_keys fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.latent_keys|string|number): meshwright.Value, meshwright.Value? kv (batch, seq, heads, plain + value), turned (batch, seq, turned) -> keys (…, plain + turned), of which all heads share the second part, and values
---@field layer_norm fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.layer_norm|string|number): meshwright.Value, meshwright.Value? x (…, width) -> the same: normalised, weighed, shifted
---@field learned_positions fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.learned_positions|string|number): meshwright.Value, meshwright.Value? x (batch, seq, hidden) -> the same, plus a learned row of each position
---@field linear fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.linear|string|number): meshwright.Value, meshwright.Value? x (…, from…) -> (…, to…), with a weight (to…, from…)
---@field log fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.log|string|number): meshwright.Value, meshwright.Value? x -> the same dims: its natural logarithm
---@field lookup fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.lookup|string|number): meshwright.Value, meshwright.Value? indices (…), weight (rows, width) -> (…, width): the rows they name
---@field map fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.map|string|number): meshwright.Value, meshwright.Value? a, b, … -> an expression of each element; dims broadcast by their names
---@field max fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.max|string|number): meshwright.Value, meshwright.Value? x -> x without some dims: the largest over them
---@field mean fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.mean|string|number): meshwright.Value, meshwright.Value? x -> x without some dims: the mean over them
---@field mlp fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.mlp|string|number): meshwright.Value, meshwright.Value? x (…, hidden) -> the same: to its width, an activation, and back
---@field noise fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.noise|string|number): meshwright.Value, meshwright.Value? x (batch, seq, …) -> in training, with normal noise added
---@field pool fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.pool|string|number): meshwright.Value, meshwright.Value? x (…, of, …) -> (…, to, …): the mean or the largest of each group of neighbours
---@field positions_of fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.positions_of|string|number): meshwright.Value, meshwright.Value? -> (dim): the numbers of a dim's elements, from 0, for lookup and distance
---@field relu fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.relu|string|number): meshwright.Value, meshwright.Value? x -> the same dims: the larger of x and 0
---@field reshape fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.reshape|string|number): meshwright.Value, meshwright.Value? x (…, from…) -> (…, to…): its elements in the same order, as dims of other sizes
---@field rms_norm fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.rms_norm|string|number): meshwright.Value, meshwright.Value? x (…, width) -> the same: over its root mean square, weighed
---@field rope fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.rope|string|number): meshwright.Value, meshwright.Value? x (batch, seq, heads, head_dim) -> the same, turned by its position
---@field route fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.route|string|number): meshwright.Value, meshwright.Value? x (batch, seq, hidden) -> rows (experts, batch, seq, hidden), places, weights: each token's rows by the experts that it chooses; of the dim experts
---@field rsqrt fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.rsqrt|string|number): meshwright.Value, meshwright.Value? x -> the same dims: 1 over its square root
---@field scan fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.scan|string|number): meshwright.Value, meshwright.Value? q, k (batch, seq, groups, state), v (batch, seq, heads, width), decay (batch, seq, heads), the logarithm -> (batch, seq, heads, width): a linear recurrence, h = exp(decay) h + k v^T, y = q h
---@field scatter fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.scatter|string|number): meshwright.Value, meshwright.Value? rows (batch, from…, …), indices (batch, from…) -> (batch, to, …): each row at the place that its index names
---@field shift fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.shift|string|number): meshwright.Value, meshwright.Value? labels (batch, seq) -> those of tokens further on; a loss leaves out the last tokens, which have none
---@field sigmoid fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.sigmoid|string|number): meshwright.Value, meshwright.Value? x -> the same dims: 1 / (1 + exp(-x))
---@field silu fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.silu|string|number): meshwright.Value, meshwright.Value? x -> the same dims: x * sigmoid(x)
---@field softcap fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.softcap|string|number): meshwright.Value, meshwright.Value? x -> the same dims: cap * tanh(x / cap)
---@field softmax fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.softmax|string|number): meshwright.Value, meshwright.Value? x -> the same dims: exp(x) over its sum along a dim
---@field softplus fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.softplus|string|number): meshwright.Value, meshwright.Value? x -> the same dims: log(1 + exp(x))
---@field split fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.split|string|number): meshwright.Value, meshwright.Value? x (…, width) -> (…, first), (…, second): its two parts
---@field sqrt fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.sqrt|string|number): meshwright.Value, meshwright.Value? x -> the same dims: its square root
---@field square fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.square|string|number): meshwright.Value, meshwright.Value? x -> the same dims: x * x
---@field sum fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.sum|string|number): meshwright.Value, meshwright.Value? x -> x without some dims: the sum over them
---@field swiglu fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.swiglu|string|number): meshwright.Value, meshwright.Value? gate, up, of the same dims -> the same: silu(gate) * up
---@field tanh fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.tanh|string|number): meshwright.Value, meshwright.Value? x -> the same dims: its hyperbolic tangent

---@class meshwright.gemma2
---@field layers? integer transformer layers (default 26) (1 .. 4096)
---@field hidden? integer width of the residual stream (default 2304) (1 .. 2147483647)
---@field heads? integer query heads; must divide hidden, unless head_dim is given (default 8) (1 .. 65536)
---@field kv_heads? integer key and value heads; must divide heads (default 4) (1 .. 65536)
---@field head_dim? integer width of a head (default 256) (1 .. 2147483647)
---@field ffn? integer width of the feed-forward part (default 9216) (1 .. 2147483647)
---@field vocab? integer size of the vocabulary (default 256000) (1 .. 2147483647)
---@field rope_theta? number base of the rotary angles (default 10000) (>= 1)
---@field window? integer tokens that a query sees, itself and those before it (default 4096) (1 .. 2147483647)
---@field norm_eps? number added to the mean square in RMSNorm (default 1e-06) (>= 0)
---@field query_pre_attn_scalar? integer scores are divided by its square root (default 256) (1 .. 2147483647)
---@field score_cap? number scores s become score_cap * tanh(s / score_cap) (default 50) (1e-09 .. 1000000000)
---@field logit_cap? number as score_cap, for logits (default 30) (1e-09 .. 1000000000)

---Gemma 2: every second layer sees a window; soft caps
---@param options? meshwright.gemma2
---@return meshwright.Model
function mw.gemma2(options) end

---@class meshwright.gemma3
---@field layers? integer transformer layers (default 26) (1 .. 4096)
---@field hidden? integer width of the residual stream (default 1152) (1 .. 2147483647)
---@field heads? integer query heads; must divide hidden, unless head_dim is given (default 4) (1 .. 65536)
---@field kv_heads? integer key and value heads; must divide heads (default 1) (1 .. 65536)
---@field head_dim? integer width of a head (default 256) (1 .. 2147483647)
---@field ffn? integer width of the feed-forward part (default 6912) (1 .. 2147483647)
---@field vocab? integer size of the vocabulary (default 262144) (1 .. 2147483647)
---@field rope_theta? number base of the rotary angles (default 1000000) (>= 1)
---@field window? integer tokens that a query sees, itself and those before it (default 512) (1 .. 2147483647)
---@field norm_eps? number added to the mean square in RMSNorm (default 1e-06) (>= 0)
---@field query_pre_attn_scalar? integer scores are divided by its square root (default 256) (1 .. 2147483647)
---@field every? integer one layer of so many sees all tokens, the last of them (default 6) (1 .. 2147483647)
---@field local_theta? number base of the rotary angles of layers with a window (default 10000) (>= 1)

---Gemma 3 (text): five layers of six see a window
---@param options? meshwright.gemma3
---@return meshwright.Model
function mw.gemma3(options) end

---@class meshwright.gpt
---@field layers integer transformer layers (1 .. 4096)
---@field hidden integer width of the residual stream (1 .. 2147483647)
---@field heads integer attention heads; must divide hidden, unless head_dim is given (1 .. 65536)
---@field head_dim? integer width of a head; 0 or left out: hidden / heads (0 .. 2147483647)
---@field ffn? integer width of the feed-forward part; 4 hidden by default (1 .. 2147483647)
---@field vocab integer size of the vocabulary (1 .. 2147483647)
---@field positions? integer learned positions; the sequence length by default (1 .. 2147483647)
---@field tied? boolean the output projection is the embedding's weight (default true)
---@field norm_eps? number added to the variance in LayerNorm (default 1e-05) (>= 0)
---@field attention? "flash"|"unfused" "unfused" makes scores and softmax as tensors, and keeps the softmax for backward; "flash", the default, keeps no scores

---GPT-2 decoder: LayerNorm, learned positions, GELU, biases
---@param options? meshwright.gpt
---@return meshwright.Model
function mw.gpt(options) end

---@class meshwright.gpt_oss
---@field layers? integer transformer layers (default 24) (1 .. 4096)
---@field hidden? integer width of the residual stream (default 2880) (1 .. 2147483647)
---@field heads? integer query heads; must divide hidden, unless head_dim is given (default 64) (1 .. 65536)
---@field kv_heads? integer key and value heads; must divide heads (default 8) (1 .. 65536)
---@field head_dim? integer width of a head (default 64) (1 .. 2147483647)
---@field ffn? integer width of an expert (default 2880) (1 .. 2147483647)
---@field vocab? integer size of the vocabulary (default 201088) (1 .. 2147483647)
---@field tied? boolean the output projection is the embedding's weight (default false)
---@field rope_theta? number base of the rotary angles (default 150000) (>= 1)
---@field rope_scaling? table as in llama's; left out: gpt-oss's own, YaRN with the factor 32
---@field window? integer tokens that a query sees, itself and those before it (default 128) (1 .. 2147483647)
---@field norm_eps? number added to the mean square in RMSNorm (default 1e-05) (>= 0)
---@field experts? integer experts of a layer (default 32) (1 .. 65536)
---@field top_k? integer experts that a token chooses (default 4) (1 .. 65536)
---@field swiglu_limit? number gates are this at most, and what they multiply is between this and its negative (default 7) (1e-09 .. 1000000000)
---@field swiglu_alpha? number a gate x becomes x sigmoid(swiglu_alpha x) (default 1.702) (1e-09 .. 1000000000)
---@field capacity? number an expert takes at most so many times its even share of a sequence's choices, earlier positions first; left out: all (dropless) (0.001 .. 1000000)
---@field balance? "aux"|"bias"|"none" how the load of experts is balanced: by a loss of each sequence's choices; by a bias on the choice that moves against the load of each step; not at all (default "aux")
---@field aux_weight? number factor of the balancing loss (default 0.01) (>= 0)
---@field bias_rate? number change of a bias in a step (default 0.001) (>= 0)
---@field z_weight? number factor of a loss that keeps router logits small (default 0) (>= 0)
---@field jitter? number the router's input is multiplied in training by a number drawn in [1 - jitter, 1 + jitter) (Switch Transformer) (0 .. 0.5)
---@field noise? number standard deviation of what is added to router logits in training, drawn from a normal distribution (0 .. 1e+30)

---gpt-oss: experts, sinks of attention, windows, biases
---@param options? meshwright.gpt_oss
---@return meshwright.Model
function mw.gpt_oss(options) end

---@class meshwright.llama
---@field layers integer transformer layers (1 .. 4096)
---@field hidden integer width of the residual stream (1 .. 2147483647)
---@field heads integer query heads; must divide hidden, unless head_dim is given (1 .. 65536)
---@field kv_heads? integer key and value heads; must divide heads, which they default to (1 .. 65536)
---@field head_dim? integer width of a head; 0 or left out: hidden / heads (0 .. 2147483647)
---@field ffn integer width of the feed-forward part (1 .. 2147483647)
---@field vocab integer size of the vocabulary (1 .. 2147483647)
---@field tied? boolean the output projection is the embedding's weight (default false)
---@field rope_theta? number base of the rotary angles (default 10000) (>= 1)
---@field rope_scaling? table angles for longer sequences, with the keys of config.json: { type = "llama3" | "yarn" | "linear", factor = 8, … }
---@field window? integer tokens that a query sees, itself and those before it; left out: all (1 .. 2147483647)
---@field norm_eps? number added to the mean square in RMSNorm (default 1e-05) (>= 0)
---@field attention? "flash"|"unfused" "unfused" makes scores and softmax as tensors, and keeps the softmax for backward; "flash", the default, keeps no scores

---Llama decoder: RMSNorm, rotary positions, SwiGLU, no bias
---@param options? meshwright.llama
---@return meshwright.Model
function mw.llama(options) end

---@class meshwright.mamba2
---@field layers? integer transformer layers (default 64) (1 .. 4096)
---@field hidden? integer width of the residual stream (default 4096) (1 .. 2147483647)
---@field heads? integer heads of the recurrence (default 128) (1 .. 65536)
---@field head_dim? integer width of a head (default 64) (1 .. 2147483647)
---@field groups? integer groups of heads, which share keys and queries; must divide heads (default 8) (1 .. 65536)
---@field state? integer width of a key: a head's state is a matrix of state and head_dim (default 128) (1 .. 2147483647)
---@field kernel? integer tokens that the convolution sees (default 4) (1 .. 1024)
---@field chunk? integer tokens whose products are made at a time (default 256) (1 .. 65536)
---@field vocab? integer size of the vocabulary (default 32768) (1 .. 2147483647)
---@field tied? boolean the output projection is the embedding's weight (default false)
---@field norm_eps? number added to the mean square in RMSNorm (default 1e-05) (>= 0)

---Mamba-2 decoder: a convolution and a recurrence, no attention
---@param options? meshwright.mamba2
---@return meshwright.Model
function mw.mamba2(options) end

---@class meshwright.model
---@field name? string what messages and reports call it (default "model")
---@field dims table<string, integer|table> sizes by name: hidden, vocab, and those that its ops name (heads, ffn, …); { 64, like = "ffn" } is cut as ffn is; { 64, even = true } is cut into equal parts alone
---@field layers? integer transformer layers; a graph may say them itself: m:layers(4) (1 .. 4096)
---@field block? fun(x: meshwright.Value, layer: integer): meshwright.Value? a function of a layer's input and the layer's number, from 0, that returns its output; called once for each layer when the experiment is read
---@field inputs? table of a graph, what it has beside m.tokens, by name and dims: image = { "batch", "patches", "channels" } are numbers, kinds = { "batch", "seq", below = 2 } indices; m.image is the value
---@field graph? fun(m: meshwright.Graph): meshwright.Value|meshwright.Value[]|nil in place of block: a function of the model, m, that computes with m.tokens, m.labels and m.positions, in `for layer in m:layers(n)` for each layer, and returns a loss or a list of losses; called once when the experiment is read
---@field embed? fun(x: meshwright.Value): meshwright.Value? a function of the embedded tokens that returns the first layer's input
---@field head? fun(x: meshwright.Value): meshwright.Value? a function of the last layer's output that returns what is projected to the vocabulary; left out: an RMSNorm
---@field tied? boolean the output projection is the embedding's weight (default false)
---@field hf? table what Hugging Face's transformers calls the model: { type = "bert", architecture = "BertForMaskedLM", config = { hidden_size = 64, … }, without = { "pooler." } }; weights are held to it, and exported with such a config.json

---A model of one's own: a block as a function of a value over named dims
---@param options? meshwright.model
---@return meshwright.Model
function mw.model(options) end

---@class meshwright.moe
---@field layers integer transformer layers (1 .. 4096)
---@field hidden integer width of the residual stream (1 .. 2147483647)
---@field heads integer query heads; must divide hidden, unless head_dim is given (1 .. 65536)
---@field kv_heads? integer key and value heads; must divide heads, which they default to (1 .. 65536)
---@field head_dim? integer width of a head; 0 or left out: hidden / heads (0 .. 2147483647)
---@field ffn integer width of the feed-forward part (1 .. 2147483647)
---@field vocab integer size of the vocabulary (1 .. 2147483647)
---@field tied? boolean the output projection is the embedding's weight (default false)
---@field rope_theta? number base of the rotary angles (default 10000) (>= 1)
---@field rope_scaling? table angles for longer sequences, with the keys of config.json: { type = "llama3" | "yarn" | "linear", factor = 8, … }
---@field window? integer tokens that a query sees, itself and those before it; left out: all (1 .. 2147483647)
---@field norm_eps? number added to the mean square in RMSNorm (default 1e-05) (>= 0)
---@field attention? "flash"|"unfused" "unfused" makes scores and softmax as tensors, and keeps the softmax for backward; "flash", the default, keeps no scores
---@field kv_lora_rank? integer latent attention: width of the latent that keys and values of all heads are made from; left out: grouped attention (1 .. 2147483647)
---@field q_lora_rank? integer width of the latent that queries are made from; left out: from the stream (1 .. 2147483647)
---@field qk_nope_head_dim? integer width of the part of a query or key head that has no rotary positions (1 .. 2147483647)
---@field qk_rope_head_dim? integer width of the part with rotary positions; all heads share that part of the keys (2 .. 2147483647)
---@field v_head_dim? integer width of a value head (1 .. 2147483647)
---@field experts integer experts of a layer (1 .. 65536)
---@field top_k integer experts that a token chooses (1 .. 65536)
---@field expert_ffn? integer width of an expert; default ffn (1 .. 2147483647)
---@field shared_experts? integer experts that every token goes through, as one of their width (default 0) (0 .. 2147483647)
---@field dense_layers? integer leading layers without experts, of width ffn (default 0) (0 .. 2147483647)
---@field capacity? number an expert takes at most so many times its even share of a sequence's choices, earlier positions first; left out: all (dropless) (0.001 .. 1000000)
---@field chosen_by? "tokens"|"experts" tokens choose experts; or each expert chooses the tokens of a sequence with the highest affinities to it, capacity times an even share of them, so that a token has top_k experts on average (default "tokens")
---@field balance? "aux"|"bias"|"none" how the load of experts is balanced: by a loss of each sequence's choices; by a bias on the choice that moves against the load of each step; not at all (default "aux")
---@field aux_weight? number factor of the balancing loss (default 0.01) (>= 0)
---@field bias_rate? number change of a bias in a step (default 0.001) (>= 0)
---@field z_weight? number factor of a loss that keeps router logits small (default 0) (>= 0)
---@field jitter? number the router's input is multiplied in training by a number drawn in [1 - jitter, 1 + jitter) (Switch Transformer) (0 .. 0.5)
---@field noise? number standard deviation of what is added to router logits in training, drawn from a normal distribution (0 .. 1e+30)
---@field score? "softmax"|"sigmoid" a token's affinity to the experts, from logits (default "softmax")
---@field normalise? boolean the weights of a token's experts sum to one (times scale) (default true)
---@field scale? number factor of the experts' weights (default 1)
---@field groups? integer equal groups that the experts stand in (1 .. 65536)
---@field group_top? integer groups that a token chooses its experts in: those whose two highest experts sum to most; with softmax, those with the highest expert (1 .. 65536)
---@field predict_ahead? integer modules behind the layers, of a layer each, that predict the tokens after the next one (0 .. 64)
---@field ahead_weight? number factor of the mean of these modules' losses; left out: 0.3 (>= 0)

---Llama decoder with experts: top-k router, shared experts, dense leading layers
---@param options? meshwright.moe
---@return meshwright.Model
function mw.moe(options) end

---@class meshwright.olmo2
---@field layers? integer transformer layers (default 32) (1 .. 4096)
---@field hidden? integer width of the residual stream (default 4096) (1 .. 2147483647)
---@field heads? integer query heads; must divide hidden, unless head_dim is given (default 32) (1 .. 65536)
---@field kv_heads? integer key and value heads; must divide heads (default 32) (1 .. 65536)
---@field head_dim? integer width of a head; 0 or left out: hidden / heads (0 .. 2147483647)
---@field ffn? integer width of the feed-forward part (default 11008) (1 .. 2147483647)
---@field vocab? integer size of the vocabulary (default 100352) (1 .. 2147483647)
---@field tied? boolean the output projection is the embedding's weight (default false)
---@field rope_theta? number base of the rotary angles (default 500000) (>= 1)
---@field rope_scaling? table angles for longer sequences, with the keys of config.json: { type = "llama3" | "yarn" | "linear", factor = 8, … }
---@field norm_eps? number added to the mean square in RMSNorm (default 1e-06) (>= 0)
---@field attention? "flash"|"unfused" "unfused" makes scores and softmax as tensors, and keeps the softmax for backward; "flash", the default, keeps no scores

---OLMo 2 decoder: norms after each block, not before
---@param options? meshwright.olmo2
---@return meshwright.Model
function mw.olmo2(options) end

---@class meshwright.qwen3
---@field layers? integer transformer layers (default 28) (1 .. 4096)
---@field hidden? integer width of the residual stream (default 1024) (1 .. 2147483647)
---@field heads? integer query heads; must divide hidden, unless head_dim is given (default 16) (1 .. 65536)
---@field kv_heads? integer key and value heads; must divide heads (default 8) (1 .. 65536)
---@field head_dim? integer width of a head (default 128) (1 .. 2147483647)
---@field ffn? integer width of the feed-forward part (default 3072) (1 .. 2147483647)
---@field vocab? integer size of the vocabulary (default 151936) (1 .. 2147483647)
---@field tied? boolean the output projection is the embedding's weight (default true)
---@field rope_theta? number base of the rotary angles (default 1000000) (>= 1)
---@field rope_scaling? table angles for longer sequences, with the keys of config.json: { type = "llama3" | "yarn" | "linear", factor = 8, … }
---@field norm_eps? number added to the mean square in RMSNorm (default 1e-06) (>= 0)
---@field attention? "flash"|"unfused" "unfused" makes scores and softmax as tensors, and keeps the softmax for backward; "flash", the default, keeps no scores

---Qwen3 decoder: queries and keys are normed
---@param options? meshwright.qwen3
---@return meshwright.Model
function mw.qwen3(options) end

---@class meshwright.qwen3_next
---@field layers? integer transformer layers (default 48) (1 .. 4096)
---@field hidden? integer width of the residual stream (default 2048) (1 .. 2147483647)
---@field heads? integer query heads; must divide hidden, unless head_dim is given (default 16) (1 .. 65536)
---@field kv_heads? integer key and value heads; must divide heads (default 2) (1 .. 65536)
---@field head_dim? integer width of a head (default 256) (1 .. 2147483647)
---@field vocab? integer size of the vocabulary (default 151936) (1 .. 2147483647)
---@field tied? boolean the output projection is the embedding's weight (default false)
---@field rope_theta? number base of the rotary angles (default 10000000) (>= 1)
---@field rope_scaling? table angles for longer sequences, with the keys of config.json: { type = "llama3" | "yarn" | "linear", factor = 8, … }
---@field norm_eps? number added to the mean square in RMSNorm (default 1e-06) (>= 0)
---@field attention? "flash"|"unfused" "unfused" makes scores and softmax as tensors, and keeps the softmax for backward; "flash", the default, keeps no scores
---@field rotary? integer the first elements of a head, which rotary positions turn (default 64) (2 .. 2147483647)
---@field every? integer one layer of so many has attention, the last of them (default 4) (1 .. 2147483647)
---@field key_heads? integer heads of the delta rule's queries and keys (default 16) (1 .. 65536)
---@field value_heads? integer heads of the delta rule's values; a multiple of key_heads (default 32) (1 .. 65536)
---@field key_dim? integer width of a head of the delta rule's queries and keys (default 128) (1 .. 2147483647)
---@field value_dim? integer width of a head of the delta rule's values (default 128) (1 .. 2147483647)
---@field kernel? integer tokens that the delta rule's convolution sees (default 4) (1 .. 1024)
---@field chunk? integer tokens whose products are made at a time (default 64) (1 .. 65536)
---@field experts? integer experts of a layer (default 512) (1 .. 65536)
---@field top_k? integer experts that a token chooses (default 10) (1 .. 65536)
---@field expert_ffn? integer width of an expert (default 512) (1 .. 2147483647)
---@field shared_ffn? integer width of the expert that every token goes through (default 512) (1 .. 2147483647)
---@field capacity? number an expert takes at most so many times its even share of a sequence's choices, earlier positions first; left out: all (dropless) (0.001 .. 1000000)
---@field balance? "aux"|"bias"|"none" how the load of experts is balanced: by a loss of each sequence's choices; by a bias on the choice that moves against the load of each step; not at all (default "aux")
---@field aux_weight? number factor of the balancing loss (default 0.01) (>= 0)
---@field bias_rate? number change of a bias in a step (default 0.001) (>= 0)
---@field z_weight? number factor of a loss that keeps router logits small (default 0) (>= 0)
---@field jitter? number the router's input is multiplied in training by a number drawn in [1 - jitter, 1 + jitter) (Switch Transformer) (0 .. 0.5)
---@field noise? number standard deviation of what is added to router logits in training, drawn from a normal distribution (0 .. 1e+30)
---@field normalise? boolean the weights of a token's experts sum to one (times scale) (default true)

---Qwen3-Next: gated delta rule, gated attention, experts
---@param options? meshwright.qwen3_next
---@return meshwright.Model
function mw.qwen3_next(options) end

---@class meshwright.mixture
---@field sources? any what is mixed: { weight = 0.7, data = mw.shards { … } }, one after the other; weights are shares of all
---@field [1]? any the same as sources

---Several sources of tokens, mixed by weights.
---@param options? meshwright.mixture|any
---@return meshwright.Data
function mw.mixture(options) end

---@class meshwright.pack
---@field data? any the source whose samples are packed: mw.shards { … }, mw.synthetic { … }
---@field [1]? any the same as data
---@field lengths? any the lengths of documents: "own", those of the source's documents; or drawn from mw.lognormal { median, sigma }, mw.uniform { least, most }, a number of tokens, or a .csv of length,count. A document ends where its sample does (default "own")
---@field into? any how documents lie in rows: "sequential", as in the source; "greedy", the longest first, each in the first row that has room; "balanced", each in the row with the least work of attention that has room; a plugin's policy; or a function(lengths, rows, work) that returns for each row the list of its documents. What is too long for its row goes on in others, as a document of its own (default "sequential")
---@field window? integer samples whose documents are packed together; by default the batch, up to 1024 (1 .. 4096)
---@field balance_ranks? boolean whether a step's rows go to microbatches and ranks so that these have equal work; by default where into = "balanced", or as a plugin's policy says
---@field sequence? integer tokens of one sample (1 .. 2147483647)

---Another source's samples as documents that do not see each other, laid into rows.
---@param options? meshwright.pack|any
---@return meshwright.Data
function mw.pack(options) end

---@class meshwright.sets
---@field sets any sources by name: { web = mw.text { … }, code = mw.text { … } }

---Several sources of tokens by name, which take turns.
---@param options? meshwright.sets
---@return meshwright.Data
function mw.sets(options) end

---@class meshwright.shards
---@field path? any files of tokens: a name, a pattern such as "data/train_*.bin", or a list of these; llm.c's, nanoGPT's (.bin) and Megatron's (.idx beside .bin) are told apart by their headers
---@field [1]? any the same as path
---@field dtype? "auto"|"u8"|"i8"|"u16"|"i16"|"u32"|"i32"|"u64"|"i64" of a token in files without a header; auto, for names that end in .bin: 16, 32 or 64 bits, as the bytes and the model's vocab leave no doubt of (default "auto")
---@field certain? boolean the type that dtype names is right, although the bytes look like ids that are wider
---@field mask? any which tokens count as labels: files as path names them, of one byte for each token, 0 or 1, or a .csv of ranges of tokens that do not count (begin,end)
---@field documents? any where documents end, whose tokens see no token of another: the id of the token that ends each; "idx", as Megatron's indices say; or a .csv of lengths (the line length, then one number in each line). A file begins a document, and a row ends one
---@field longer? "cut"|"refuse" documents that are longer than a row go on in the next one, or are refused, where a table has their lengths (default "cut")
---@field sequence? integer tokens of one sample (1 .. 2147483647)
---@field order? "shuffled"|"sequential" shuffled: windows in an order of the seed's, each once per epoch; sequential: in the order of the file (default "shuffled")
---@field part? any[] which of the tokens, as fractions of them: { 0, 0.9 } to train on, { 0.9, 1 } to hold out

---Files of tokens: llm.c's, nanoGPT's or Megatron's.
---@param options? meshwright.shards|any
---@return meshwright.Data
function mw.shards(options) end

---@class meshwright.synthetic
---@field seed? integer which chain; the run's seed if left out (-9223372036854775808 .. 9223372036854775807)
---@field sequence? integer tokens of one sample (1 .. 2147483647)
---@field masked? number the share of labels that count nothing, on average over the samples: the first ones of each, as those of a prompt (default 0) (0 .. 1)
---@field order? "shuffled"|"sequential" accepted for all data; an endless stream has one order (default "shuffled")

---Endless tokens of a random Markov chain over the model's vocab: learnable down to a loss of 1.213 nats.
---@param options? meshwright.synthetic
---@return meshwright.Data
function mw.synthetic(options) end

---@class meshwright.tensors
---@field path? string a safetensors file, whose tensors have a row for each sample: tokens (rows, sequence) and labels, or tokens (rows, sequence + 1), whose labels are the next tokens; and the inputs that a model declares, under their names. Labels of -1 and of -100 count nothing
---@field [1]? string the same as path
---@field sequence? integer tokens of one sample (1 .. 2147483647)
---@field order? "shuffled"|"sequential" shuffled: rows in an order of the seed's, each once per epoch; sequential: in the order of the file (default "shuffled")

---Rows of tensors in a safetensors file: tokens, labels, and inputs of a model.
---@param options? meshwright.tensors|string
---@return meshwright.Data
function mw.tensors(options) end

---@class meshwright.text
---@field path? any a UTF-8 file, a folder of them (read in order of name), the name of a text that comes with the program ("gcide"), or a list
---@field [1]? any the same as path
---@field sequence? integer tokens of one sample (1 .. 2147483647)
---@field order? "shuffled"|"sequential" shuffled: windows in an order of the seed's, each once per epoch; sequential: in the order of the file (default "shuffled")
---@field part? any[] which of the tokens, as fractions of them: { 0, 0.9 } to train on, { 0.9, 1 } to hold out

---Bytes of UTF-8 text as tokens: 256 ids, no tokeniser.
---@param options? meshwright.text|any
---@return meshwright.Data
function mw.text(options) end

---@class meshwright.adamw
---@field lr number learning rate; a schedule starts from it (>= 0)
---@field betas? any[] decay of the two running averages, {first, second} (default [0.9,0.95])
---@field eps? number added to the root of the second average (default 1e-08) (>= 0)
---@field weight_decay? number decoupled decay, on every tensor (default 0.1) (>= 0)
---@field clip? number largest norm of all gradients; longer ones are scaled down to it (>= 0)

---AdamW by ATen's fused kernel.
---@param options? meshwright.adamw
---@return meshwright.Optimizer
function mw.adamw(options) end

---@class meshwright.ema
---@field optimizer? any what updates the parameters: mw.adamw { … }, mw.groups { … }
---@field [1]? any the same as optimizer
---@field decay? number what is left of the average after a step (default 0.999) (0 .. 0.9999999)

---An average of the parameters beside an optimizer.
---@param options? meshwright.ema|any
---@return meshwright.Optimizer
function mw.ema(options) end

---@class meshwright.groups
---@field groups? any optimizers, each with the parameters that it updates: { where = …, mw.adamw { … } }; where is a function of a parameter's name, dims, shape, layer and matrix, or a part of its name, or a list of such parts. The last one may have all that are left, without where. The first one's lr is that of schedules
---@field [1]? any the same as groups
---@field clip? number largest norm of all gradients; longer ones are scaled down to it (>= 0)

---Groups of parameters, each with an optimizer of its own.
---@param options? meshwright.groups|any
---@return meshwright.Optimizer
function mw.groups(options) end

---@class meshwright.muon
---@field lr number learning rate of matrices; a schedule starts from it (>= 0)
---@field momentum? number decay of the running average of gradients (default 0.95) (0 .. 0.9999)
---@field nesterov? boolean whether the update looks ahead, between gradient and average (default true)
---@field weight_decay? number decoupled decay, on every tensor (default 0.1) (>= 0)
---@field ns_steps? integer Newton-Schulz steps that orthogonalise an update (default 5) (1 .. 100)
---@field adjust_lr? "original"|"match_rms_adamw" what lr is multiplied by: sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, columns)), with which AdamW's lr and decay serve (default "original")
---@field matrices? "every"|"owner"|"shards" which ranks orthogonalise a matrix: every one that updates elements of it, one owner (matrices shared out by cost), or those over which tp cuts it, each its own part, by sums of Gram matrices (default "every")
---@field adamw? table of embedding, head, norms and biases: { lr = Muon's, betas, eps } (default {})
---@field clip? number largest norm of all gradients; longer ones are scaled down to it (>= 0)

---Muon for the matrices of layers, orthogonalised whole; AdamW for all else.
---@param options? meshwright.muon
---@return meshwright.Optimizer
function mw.muon(options) end

---@class meshwright.sgd
---@field lr number learning rate; a schedule starts from it (>= 0)
---@field momentum? number decay of the running sum of updates (default 0) (0 .. 0.9999)
---@field weight_decay? number added to the gradient, times the parameter (default 0) (>= 0)
---@field nesterov? boolean look ahead by the momentum (Sutskever et al. 2013) (default false)
---@field clip? number largest norm of all gradients; longer ones are scaled down to it (>= 0)

---Stochastic gradient descent, with momentum if asked.
---@param options? meshwright.sgd
---@return meshwright.Optimizer
function mw.sgd(options) end

---@class meshwright.shampoo
---@field lr number learning rate; a schedule starts from it (>= 0)
---@field momentum? number decay of the running average of gradients of matrices (default 0.9) (0 .. 0.9999)
---@field eps? number added to the factors' eigenvalues, and to AdaGrad's sums (default 0.0001) (>= 1e-12)
---@field weight_decay? number decoupled decay, on every tensor (default 0) (>= 0)
---@field clip? number largest norm of all gradients; longer ones are scaled down to it (>= 0)

---Shampoo for the matrices of layers, by two factors each; AdaGrad for all else.
---@param options? meshwright.shampoo
---@return meshwright.Optimizer
function mw.shampoo(options) end

---@class meshwright.update
---@field states? any names of the tensors that it keeps of each parameter, zero at first; by_rows = "rows" has a number for each row of each matrix, or "columns" (default [])
---@field step any function(p, g, s, t) that returns the parameter's new value, of the parameter, its gradient, the states and t.lr and t.step (from 1)
---@field average? string a state that begins as the parameter, and that evaluate = { by = "average" } computes with
---@field name? string what reports call it (default "update")
---@field lr number learning rate, t.lr of the function; a schedule starts from it (>= 0)
---@field clip? number largest norm of all gradients; longer ones are scaled down to it (>= 0)

---A step that a function of the script computes.
---@param options? meshwright.update
---@return meshwright.Optimizer
function mw.update(options) end

mw.microbatch = {}

---@class meshwright.microbatch.fit
---@field memory? integer|string what a rank may hold; the experiment's memory if left out (1 B .. 1 EiB)
---@field [1]? integer|string the same as memory

---The largest microbatches with which no rank is predicted to hold more.
---@param options? meshwright.microbatch.fit|integer|string
---@return meshwright.Microbatch
function mw.microbatch.fit(options) end

---@class meshwright.microbatch.ramp
---@field from integer sequences of the first step, over all ranks (1 .. 2147483647)
---@field by? integer sequences that the batch grows by at a time; as it begins, if left out (1 .. 2147483647)
---@field steps? integer steps until it has grown (1 .. 2147483647)
---@field sequences? integer sequences until it has grown, instead of steps (1 .. 2147483647)
---@field sequence? integer tokens of the first step's sequences; these grow together with the batch (1 .. 2147483647)
---@field sequence_by? integer tokens that sequences grow by at a time; as they begin, if left out (1 .. 2147483647)
---@field size? integer sequences that a rank computes at a time; all that it has if left out (1 .. 2147483647)

---A batch that grows to the experiment's, by equal increments, and sequences that grow with it.
---@param options? meshwright.microbatch.ramp
---@return meshwright.Microbatch
function mw.microbatch.ramp(options) end

---@class meshwright.constant

---The optimizer's learning rate at every step.
---@param options? meshwright.constant
---@return meshwright.Schedule
function mw.constant(options) end

---@class meshwright.cosine
---@field warmup? integer steps over which the rate rises linearly to lr (default 0) (0 .. 2147483647)
---@field total? integer step from which the rate is `min`; the run's steps if left out (1 .. 2147483647)
---@field min? number learning rate at the end (default 0) (>= 0)

---Linear warm-up, then half a cosine down to `min`.
---@param options? meshwright.cosine
---@return meshwright.Schedule
function mw.cosine(options) end

---@class meshwright.plugin.chaos
---@field folder string where the conductor writes orders, and reads what came of them

---makes faults happen inside a run, for meshwright chaos
---@overload fun(options?: meshwright.plugin.chaos): meshwright.Observer
---@class meshwright.make.chaos

---@class meshwright.plugin.coshard
---@field dim? string the dim that is computed in slices: "ffn", "heads", "seq", "vocab"
---@field [1]? string the same as dim
---@field slices integer how many; each rank's part of the dim must divide by it (1 .. 65536)
---@field ops? any[] only ops of these kinds, or with such a part between the dots of their name
---@field recompute? boolean backward recomputes the tensors inside a slice, slice by slice (default true)

---a dim is computed in slices, one after the other
---@overload fun(options?: meshwright.plugin.coshard|string): meshwright.Strategy
---@class meshwright.make.coshard

---@class meshwright.plugin.cuda

---NVIDIA's GPUs, by libtorch's CUDA side
---@overload fun(options?: meshwright.plugin.cuda): meshwright.Device
---@class meshwright.make.cuda

---@class meshwright.plugin.diloco
---@field ways? integer number of replicas, over which the batch is split (1 .. 1048576)
---@field [1]? integer the same as ways
---@field every integer steps from one outer step to the next (1 .. 2147483647)
---@field outer? any the optimizer that moves the anchor by the mean of outer gradients (anchor minus parameters); or "mean": replicas become their mean, as in Local SGD. As in the paper if left out: mw.sgd { lr = 0.7, momentum = 0.9, nesterov = true }
---@field dtype? "fp32"|"bf16"|"fp16" in which outer gradients are sent and summed; float64 where all is (default "fp32")
---@field fragments? integer groups of layers that are brought together one after the other (default 1) (1 .. 2147483647)
---@field delay? integer steps that replicas train on while outer gradients are summed; less than every (default 0) (0 .. 2147483647)
---@field keeps? number share of its own parameters that a replica keeps in an outer step (default 0) (0 .. 0.999)

---replicas that differ: Local SGD, DiLoCo and its streaming form
---@overload fun(options?: meshwright.plugin.diloco|integer): meshwright.Strategy
---@class meshwright.make.diloco

---@class meshwright.plugin.dp
---@field ways? integer ranks that the batch is split over (1 .. 1048576)
---@field [1]? integer the same as ways
---@field bucket? integer|string gradients of one all-reduce (default "25MiB") (1 B .. 1 EiB)
---@field overlap? boolean start each bucket's all-reduce inside the last microbatch's backward (default true)
---@field reduce? "last"|"each" all-reduce after the last microbatch, or after each one (default "last")
---@field hook? any how a bucket is summed: "none", as it is; "bf16", "int8" or "powersgd" (they lose bits), or another hook by name; dp.powersgd { … } or another with options; or a function of the bucket that returns one of these when the plan is made (default "none")

---@class meshwright.plugin.dp.powersgd
---@field rank? integer columns of the factors that stand for a gradient matrix (default 4) (1 .. 1048576)
---@field [1]? integer the same as rank
---@field even_if_larger? boolean matrices are factored that do not become smaller by it, too (default false)

---data parallelism: batch -> dp, bucketed gradient all-reduce
---@overload fun(options?: meshwright.plugin.dp|integer): meshwright.Strategy
---@class meshwright.make.dp
---@field powersgd fun(options?: meshwright.plugin.dp.powersgd|integer): meshwright.Hook two factors of few columns stand for each gradient matrix (Vogels et al. 2019)

---@class meshwright.plugin.ep
---@field ways? integer ranks that the experts are split over; ep borrows them from the data axes first, then from the sequence's, then from the model's (1 .. 1048576)
---@field [1]? integer the same as ways
---@field dispatch? "alltoall"|"allgather" alltoall sends each token to the ranks of its experts; allgather sends all tokens to all ranks, and reduce-scatters the results (default "alltoall")
---@field borrow? any[] axes, or roles of axes, that lend ranks, in this order: { "tp" }; left out: data, sequence, model
---@field overlap? boolean shared experts compute while tokens are exchanged (default false)
---@field imbalance? number for predictions: the rows of the fullest rank, divided by the mean over ranks (default 1) (1 .. 1048576)

---expert parallelism: experts -> ep, on borrowed ranks
---@overload fun(options?: meshwright.plugin.ep|integer): meshwright.Strategy
---@class meshwright.make.ep

---@class meshwright.plugin.mpi

---ranks in several processes, that mpirun or srun started
---@overload fun(options?: meshwright.plugin.mpi): meshwright.Communicator
---@class meshwright.make.mpi

---@class meshwright.plugin.pp
---@field ways? integer stages that the layers are split into (1 .. 65536)
---@field [1]? integer the same as ways
---@field schedule? any gpipe, 1f1b, interleaved, looped-bfs, zb-h1, zb-h2, zbv, v-half, v-min, dualpipev, or a scheduler of another plugin; a CSV file of compute actions (2F0, 1I3, ...); or a function that returns a list of actions for each stage (default "1f1b")
---@field chunks? integer virtual stages of each stage; by default what the schedule needs, else 1; interleaved and looped-bfs need this option (1 .. 1024)
---@field layout? any layers of each stage (of each virtual stage, in model order, if chunked): a list; "auto" balances the cost of stages, with the embedding and the head, by predicted times where a cluster is named, else by declared FLOPs and bytes; or "even" (default "auto")
---@field weave? any how the actions of a group (0F3+1B1) are interleaved: a weave's name, a table with its options; or mw.weave { … } (default "switch")
---@field times? any times of F, I and W for one microbatch, one { F, I, W } for each virtual stage, or a run file with measured times; zero-bubble schedules place W by these times; by default predicted times
---@field memory? integer|string limit of a rank's activations that the schedule must keep (1 B .. 1 EiB)

---@class meshwright.plugin.pp.1f1b
---@field pair? boolean an F and the B after it form a group, which the stage may interleave: a stage runs ahead by one more F for each stage behind it, and stores their activations (default false)

---@class meshwright.plugin.pp.interleaved
---@field pair? boolean an F and the B after it form a group, which the stage may interleave, and the activations of both are stored at once (default false)

---@class meshwright.plugin.pp.zb-h1
---@field pair? boolean each W forms a group with a neighbouring action that does not need it, and the stage may interleave them (default false)

---@class meshwright.plugin.pp.zb-h2
---@field pair? boolean each W forms a group with a neighbouring action that does not need it, and the stage may interleave them (default false)

---@class meshwright.plugin.pp.zbv
---@field pair? boolean each W forms a group with a neighbouring action that does not need it, and the stage may interleave them (default false)

---@class meshwright.plugin.pp.v-half
---@field pair? boolean each W forms a group with a neighbouring action that does not need it, and the stage may interleave them (default false)

---@class meshwright.plugin.pp.v-min
---@field pair? boolean each W forms a group with a neighbouring action that does not need it, and the stage may interleave them (default false)

---@class meshwright.plugin.pp.dualpipev
---@field pair? boolean an F of one chunk and a B of the other form a group, which the stage may interleave; false: B follows F (default true)

---@class meshwright.plugin.pp.switch
---@field axes? any[] names of axes: only waits for their transfers count; left out: all

---@class meshwright.plugin.pp.hide
---@field axes? any[] names of axes: only waits for their transfers count; left out: all

---pipeline parallelism: layers -> pp, with a schedule
---@overload fun(options?: meshwright.plugin.pp|integer): meshwright.Strategy
---@class meshwright.make.pp
---@field ["1f1b"] fun(options?: meshwright.plugin.pp.1f1b): meshwright.Scheduler one forward, one backward, at most p - i microbatches stored (Narayanan et al. 2021)
---@field interleaved fun(options?: meshwright.plugin.pp.interleaved): meshwright.Scheduler 1F1B over several chunks a stage, bubble / chunks (Narayanan et al. 2021)
---@field ["zb-h1"] fun(options?: meshwright.plugin.pp.zb-h1): meshwright.Scheduler 1F1B with W's that fill a third of its bubble, in its memory (Qi et al. 2023)
---@field ["zb-h2"] fun(options?: meshwright.plugin.pp.zb-h2): meshwright.Scheduler no bubble beyond warm-up, in about twice 1F1B's memory (Qi et al. 2023)
---@field zbv fun(options?: meshwright.plugin.pp.zbv): meshwright.Scheduler two chunks in a V, no bubble beyond warm-up, in 1F1B's memory (Qi et al. 2024)
---@field ["v-half"] fun(options?: meshwright.plugin.pp.v-half): meshwright.Scheduler two chunks in a V, in half of 1F1B's memory (Qi et al. 2024)
---@field ["v-min"] fun(options?: meshwright.plugin.pp.v-min): meshwright.Scheduler two chunks in a V, in a third of 1F1B's memory (Qi et al. 2024)
---@field dualpipev fun(options?: meshwright.plugin.pp.dualpipev): meshwright.Scheduler DualPipe cut in half: forwards and backwards cross in a V (DeepSeek 2025)
---@field switch fun(options?: meshwright.plugin.pp.switch): meshwright.Weave a lane runs until it would wait for a transfer, then the next one
---@field hide fun(options?: meshwright.plugin.pp.hide): meshwright.Weave by predicted seconds: at a wait that is not over, the lane that is ready; for plans with a cluster

---@class meshwright.plugin.sp
---@field ways? integer ranks of its own (axis cp) that the sequence is split over; left out: tp's ranks, in the residual stream (1 .. 1048576)
---@field [1]? integer the same as ways
---@field form? "ring"|"allgather"|"ulysses" with ranks of its own, how attention sees the whole sequence: keys and values go round; they are gathered; or an all-to-all gives each rank some heads of it
---@field balance? "zigzag"|"documents"|"none" zigzag gives each rank of a ring, or of gathered keys, one part of the first half of the sequence and the mirrored part of the second half, so that all ranks have equal work in causal attention; documents does so with each document of a row; by default zigzag
---@field ulysses? integer with a ring or gathered keys: number n of adjacent ranks that exchange heads by all-to-all; the ring, or the gather of keys, has ways / n ranks (default 1) (1 .. 1048576)

---sequence parallelism on tp's ranks, or context parallelism on its own: seq -> tp, cp
---@overload fun(options?: meshwright.plugin.sp|integer): meshwright.Strategy
---@class meshwright.make.sp

---@class meshwright.plugin.tp
---@field ways? integer ranks that heads, ffn and vocab are split over (1 .. 1048576)
---@field [1]? integer the same as ways
---@field overlap? boolean compute weight gradients while input gradients are all-reduced (default false)

---tensor parallelism: heads, kv_heads, ffn, vocab -> tp
---@overload fun(options?: meshwright.plugin.tp|integer): meshwright.Strategy
---@class meshwright.make.tp

---@class meshwright.plugin.zero
---@field ways? integer ranks that the batch is split over (1 .. 1048576)
---@field [1]? integer the same as ways
---@field stage? integer what is sharded: 1 optimizer state, 2 gradients too, 3 parameters too (default 1) (1 .. 3)
---@field replicas? integer copies of the model among these ranks; state is sharded within ways / replicas ranks (default 1) (1 .. 1048576)
---@field prefetch? integer stage 3: layers whose parameters are gathered ahead (default 1) (0 .. 1024)
---@field overlap_gather? boolean stages 1 and 2: updated parameters are gathered beside the next step's forward, each bucket's until its first use; else all at the step's end (default true)
---@field keep? boolean stage 3: gather once a step, not again for each forward and backward (default false)
---@field reduce? "each"|"chunk" stages 2 and 3: gradients are reduced in every microbatch; or added up whole and reduced when a stage changes to another chunk of the model (default "each")
---@field sequence? boolean state is sharded over the ranks that split the sequence too, beside its own (default false)
---@field hook? any how a bucket's gradients are summed, as dp's hook: "none", "int8", "bf16", "powersgd", another hook by name, or a function of the bucket (default "none")
---@field gather? any stage 3: how a bucket's parameters are gathered: "none", as they are; "int8", or another hook that gathers; or a function of the bucket. Loses bits (default "none")
---@field bucket? integer|string gradients that are reduced together, at most (stage 1; stage 2 also parts them by layer) (default "25MiB") (1 B .. 1 EiB)
---@field offload? "none"|"optimizer"|"parameters" state kept in host memory: optimizer state; at stage 3 also a rank's shard of the parameters (default "none")
---@field update? "host"|"device" where offloaded state is updated: in host memory, or on the device, to which each bucket is copied and back (default "host")
---@field overlap_update? boolean updates in host memory overlap with the next step's forward, or with the backward if no update needs the norm of all gradients; false: all at the step's end (default true)

---ZeRO: optimizer state, gradients, parameters sharded over data-parallel ranks
---@overload fun(options?: meshwright.plugin.zero|integer): meshwright.Strategy
---@class meshwright.make.zero

---Plugins by name: `local one, other = mw.plugins("one", "other")`.
---@param ... "chaos"|"coshard"|"cuda"|"diloco"|"dp"|"ep"|"mpi"|"pp"|"sp"|"tp"|"zero"
---@return fun(options?: table|integer): meshwright.Strategy ...
function mw.plugins(...) end

---@class meshwright.SweepTable
---@field name string of the sweep; its folder is runs/NAME
---@field base meshwright.Experiment the experiment that all cells share: keys of mw.train
---@field over? table<string, any>|table<string, any>[] the axes: { key = { values }, … }; a list of such tables adds their grids up
---@field skip? fun(cell: meshwright.CellSoFar): string? called with each cell; returns why it is not run, or nothing
---@field same_loss_as? string|table a cell's name or a value of an axis whose losses all others must have, or { that, tolerance = 1e-5 }
---@field baseline? string what the table's last columns compare with; same_loss_as if left out
---@field repeats? integer|table runs of each cell, with the next seeds, or { 3, seed = "same" } (default 1)
---@field predict? boolean predict the cells, in this process, and run none (default false)

---@class meshwright.GoOptions
---@field workers? integer cells that run at a time; as many as memory and cores take if left out (1 .. 4096)
---@field only? string|string[] the cells whose name has this in it, or matches with * and ?; or a list
---@field retry? "failed"|"disturbed"|"all" runs these again, although they have a result
---@field order? integer the seed of the random order in which cells run, a round of all mixes for each seed; 0: as the grid has them (default 1) (0 .. 2147483647)
---@field reruns? integer how often a cell runs again, after the others, if other programs had the cores during its run (default 2) (0 .. 100)
---@field time? number what a cell may take before it is ended (0.001 .. 1000000000)
---@field memory? integer|string what a cell's process may allocate (1 B .. 1 EiB)
---@field dry? boolean say what would run, with what is predicted, and run nothing (default false)
---@field predict? boolean predict the cells, in this process, and run none (default false)
---@field quiet? boolean no lines of progress and no table (default false)
---@field shard? string "1/4": this process runs every fourth cell
---@field print? "sbatch" print a job-array script for Slurm, and run nothing

---@class meshwright.StrategyAxis
---@field name? string what collectives and messages call it; left out: the strategy's name
---@field [1]? string the same as name
---@field ways? integer its ranks, where a plan does not say (1 .. 1048576)
---@field role? "data"|"model"|"sequence"|"experts"|"layers" what its ranks split; others find it by that, whatever its name
---@field borrow? any[] axes, or roles of axes, that lend ranks, in this order; left out: ranks of its own

---@class meshwright.StrategyRule
---@field dim? string the dim that the axis cuts
---@field [1]? string the same as dim
---@field where? fun(op: meshwright.Op): boolean? of an op, returns true where the rule holds, which then outweighs rules without one; left out: in every op that has the dim
---@field axis? string an axis by name, or all axes of a role; left out: the strategy's own
---@field lent_by? any[] only over those ranks of the axis that these axes, or axes of these roles, lend; the rule is left out where there are none
---@field slices? integer no axis cuts it: each rank computes its part of it in so many slices, one after the other (1 .. 65536)
---@field recompute? boolean for slices: backward recomputes the tensors inside a slice (default true)
---@field optional? boolean left out where the model lacks the dim or the axis cannot cut it as it must be (default false)

---@class meshwright.StrategyStore
---@field dim? string the dim of the parameters along which they are stored sharded
---@field [1]? string the same as dim
---@field where? fun(parameter: meshwright.Parameter): boolean? of a parameter, returns true where the rule holds; left out: all that have the dim
---@field axis? string an axis by name, or all axes of a role; left out: the strategy's own

---@class meshwright.StrategyTable
---@field name string what plans and messages call it
---@field axis? string|meshwright.StrategyAxis|meshwright.StrategyAxis[] the axis that it asks for, { name, ways, role, borrow }, or a list of several; left out: none, and rules name another strategy's
---@field rules? (string|meshwright.StrategyRule)[]|fun(plan: meshwright.RulesRequest): (string|meshwright.StrategyRule)[] which dim lives on the axis, and where: a list of { dim, where, axis }, or a function that returns it, of { dims = { name = size }, axes = { name = ways }, layers }
---@field store? (string|meshwright.StrategyStore)[] which parameters are stored sharded though they are not used so: a list of { dim, where, axis }
---@field bucket? integer|string gradients that are reduced together, at most; left out: all (1 B .. 1 EiB)
---@field overlap? boolean start each bucket's reduction inside the last microbatch's backward (default false)
---@field passes? any[] what mw.pass and mw.directives return: edits of the program
---@field note? string a sentence for the printed plan

---A plugin by name, or by the path of its file: `mw.plugin "./my_tp.so"`.
---@overload fun(name: "chaos"): meshwright.make.chaos
---@overload fun(name: "coshard"): meshwright.make.coshard
---@overload fun(name: "cuda"): meshwright.make.cuda
---@overload fun(name: "diloco"): meshwright.make.diloco
---@overload fun(name: "dp"): meshwright.make.dp
---@overload fun(name: "ep"): meshwright.make.ep
---@overload fun(name: "mpi"): meshwright.make.mpi
---@overload fun(name: "pp"): meshwright.make.pp
---@overload fun(name: "sp"): meshwright.make.sp
---@overload fun(name: "tp"): meshwright.make.tp
---@overload fun(name: "zero"): meshwright.make.zero
---@param name string
---@return fun(options?: table|integer): meshwright.Strategy
function mw.plugin(name) end

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
