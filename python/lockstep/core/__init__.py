"""What the trainer's side and the engine's are built on. Of lockstep it imports nothing else."""
