"""How much of a computation is matrix products, which every way of doing it has in common."""

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
    """Return the share of the time that matrix products take, and attention where it is one call; by PyTorch's profiler.

    The profiler itself makes many small calls slower than few large ones, so for small ones the share is too low.
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    times = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    return sum(times.get(name, 0) for name in _PRODUCTS) / sum(times.values())
