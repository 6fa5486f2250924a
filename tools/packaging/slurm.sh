#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A batch job for Slurm. The preload is for the ranks alone: not for this shell, not for srun.
#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8
preload=${LIBMETASHARD:-/opt/metashard/lib/libmetashard.so}
# Pages outlive the processes there, on each node.
export METASHARD_STATE_DIR=${SLURM_TMPDIR:-/tmp}/metashard-$USER-$SLURM_JOB_ID
export METASHARD_LOG=info:$SLURM_SUBMIT_DIR/metashard-$SLURM_JOB_ID-%p.log
srun env LD_PRELOAD="$preload" python train.py "$@"
# Each node writes a page on what happened.
srun --ntasks-per-node=1 bash -c \
    'metashard-dump show "$METASHARD_STATE_DIR"/*.state --html "$SLURM_SUBMIT_DIR/metashard-$SLURM_JOB_ID-$(hostname).html"'
