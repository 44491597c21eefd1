"""The job `diff`: how two schedules differ, and whether one result of `bench` is slower than another."""
