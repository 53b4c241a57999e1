-- The job script by which Slurm runs a sweep as an array of jobs.
local format = require "meshwright.format"

local most_jobs = 1000  -- Slurm's MaxArraySize is 1001 where nobody has set it
local mebibyte = 1 << 20

return function(job)
  local cells = #job.cells
  local jobs = math.max(1, math.min(cells, most_jobs))
  local of_job, most = {}, 0  -- what is done already leaves some with more than others
  for _, cell in ipairs(job.cells) do
    of_job[cell % jobs] = (of_job[cell % jobs] or 0) + 1
    most = math.max(most, of_job[cell % jobs])
  end
  local limit = "# No limit of time was given: sweep --time SECONDS --print sbatch makes one of it."
  if job.time > 0 and most > 0 then
    limit = ("#SBATCH --time=%d"):format(math.ceil(most * (job.time + 10) / 60) + 1)
  end
  local words = {}
  for k, word in ipairs(job.arguments) do words[k] = " " .. word end
  return ([[
#!/bin/bash
# The sweep NAME as a job array: CELLS, SECONDS predicted one after the other.
# Submitting it again runs what is not done. Jobs on different machines need the folder
# below on a file system that they share.
#SBATCH --job-name=NAME
#SBATCH --array=1-JOBS
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=CORES
#SBATCH --mem=MEMORYM
LIMIT
#SBATCH --output=slurm-NAME-%A_%a.txt
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@60
set -euo pipefail
cd FOLDER
export OMP_WAIT_POLICY=PASSIVE
exec PROGRAM sweep SCRIPT --workers 1 --shard "$SLURM_ARRAY_TASK_ID/JOBS"WORDS
]]):gsub("%u%u%u%u+", {
    NAME = job.name, CELLS = format.plural(cells, "cell"), SECONDS = job.seconds, JOBS = jobs, CORES = job.cores,
    MEMORYM = (job.memory + mebibyte - 1) // mebibyte .. "M", LIMIT = limit, FOLDER = job.folder, PROGRAM = job.program,
    SCRIPT = job.script, WORDS = table.concat(words),
  })
end
