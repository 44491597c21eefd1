"""Parts of the job `explore`: study, samplers, objectives, score command and front."""
