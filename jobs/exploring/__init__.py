"""What the job `explore` is made of: a study of variants, samplers, objectives, the score command, and the front."""
