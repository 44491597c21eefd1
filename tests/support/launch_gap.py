"""A GPU made of host memory with a clock: what the host takes for a launch passes while an idle GPU waits."""

from __future__ import annotations

from host_driver import Event, Graph, HostDriver, Stream


class LaunchGap(HostDriver):
    """The host takes `gap_us` for the launch of a graph, and the GPU `each_us` for each of its kernels, in order."""

    def __init__(self, gap_us: float, each_us: float = 10.0) -> None:
        super().__init__()
        self.gap_us, self.each_us = gap_us, each_us
        self.host_us = self.gpu_us = 0.0
        self.at_us: dict[int, float] = {}

    def record(self, event: Event, stream: Stream) -> None:
        asked_us = self.host_us

        def stamp() -> None:
            self.at_us[id(event)] = self._reached(asked_us)

        event.recorded = self._add(stream, stamp)

    def launch_graph(self, graph: Graph, stream: Stream) -> None:
        self.host_us += self.gap_us
        asked_us = self.host_us
        kernels = sum(bool(each.touches) for each in graph.operations)
        self._add(stream, lambda: self._reached(asked_us, kernels * self.each_us))
        super().launch_graph(graph, stream)

    def elapsed_us(self, start: Event, end: Event) -> float:
        super().elapsed_us(start, end)
        self.host_us = max(self.host_us, self.gpu_us)
        return self.at_us[id(end)] - self.at_us[id(start)]

    def _reached(self, asked_us: float, spent_us: float = 0.0) -> float:
        """When the GPU is done with what the host asked for at `asked_us`."""
        self.gpu_us = max(self.gpu_us, asked_us) + spent_us
        return self.gpu_us
