"""The share of matrix products in a computation, which every implementation has in common."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

_PRODUCTS = (
    "aten::mm",
    "aten::bmm",
    "aten::addmm",
    "aten::baddbmm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
)


def share_of_products(run: Callable[[], object]) -> float:
    """Return the share of time in matrix products, and in attention where it is one call, as PyTorch's profiler measures it.

    The profiler slows down many small calls more than few large ones, so the share is too low for small calls.
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    times = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    return sum(times.get(name, 0) for name in _PRODUCTS) / sum(times.values())
