"""calibrated.py -- what steps of Llama-3-8B's shape take on an H200, by a model that is fitted to what one measured.

    calibrated.py [--check]

predict.py estimates from machine code and data sheets. This model has few constants (FITTED), each from the device run of 26
November 2026 (tests/bench/RESULTS.md), and no floor: absolute times alone. It prints each figure with its label:

    measured    the device run's own figure, and beside it what the model gives for the same code
    calibrated  the model, for a step that no device has run with kernels that one has
    estimated   the model, and what predict.py's law says of a kernel that no device has run

--check fails (1) where the model is off a measured figure by more than 5 %.
"""
import sys

COPY = 4.235e12  # bytes a second of a copy, read and written; measured: 4.23 and 4.24
MATRIX = 797e12  # BF16 operations a second of one product of 8,192 cubed; measured: 719 to 805
N_SM = 132
LAYERS, DIM, FFN, HEADS, KV, HEAD, VOCAB, RANK = 32, 4096, 14336, 32, 8, 128, 128256, 16
PRODUCTS = [((HEADS + 2 * KV) * HEAD, DIM, 3), (DIM, HEADS * HEAD, 1), (2 * FFN, DIM, 2), (DIM, FFN, 1)]  # n, k, outputs
WEIGHTS = 2 * sum(n * k for n, k, _ in PRODUCTS)  # bytes of a layer
KV_BYTES = 2 * KV * HEAD * 2  # of a position and layer

# Products by gemm_stream.cu, us between two events, of which 5 are the events' (16 and 32 rows).
EVENTS_US = 5
STREAMS = {(6144, 4096): (18.3, 20.4), (4096, 4096): (17.3, 17.8), (28672, 4096): (63.4, 62.4), (4096, 14336): (43.7, 47.5)}

FITTED = {
    # From the last byte of a launch to the first of the next, in a graph and with early launches: what steps had above their
    # products and attention alone. By CUPTI's times of kernels 2.5 of it.
    "gap_us": 3.7,
    "stream_memory": 1.0,  # of the copy, weights of gemm_stream.cu; to STREAMS, with the next two
    "to_blocks": 7.6e12,  # bytes a second of x from the second-level cache to all blocks
    "stream_us": 0.75,  # of each product, whatever its size
    "norm_us": 1.5,
    # Attention: once a launch, for each further round of blocks, and of the copy, its pages. By bench_attend, 32 and 128 rows.
    "attend_us": 7.5,
    "round_us": 4.5,
    "attend_memory": 0.87,
    "lora_us": 2.7,  # of expand, behind a product, whatever its bytes: one adapter's step
    "lora_memory": 0.75,  # of the copy, bytes of adapters that nothing hides: 32 and 256 adapters
    "many_rate": 0.70,  # of MATRIX, cuBLAS's products of 256 rows
    "prompt_rate": 1.0,  # of MATRIX, cuBLAS's products of 8,192 rows
    "prompt_attend": 230e12,  # operations a second of attention in prompts
    "rows_memory": 0.52,  # of the copy, what prompts' other kernels read and write
    "rest_us": 60,  # sampling, embedding, the last norm
}
F = FITTED


def units(n):
    """Columns of a block of a stream, in units of 16: stream_cut_of()."""
    all_units = -(-n // 16)
    return -(-all_units // (-(-all_units // (14 * N_SM)) * N_SM))


def stream_us(rows, n, k):
    blocks = -(-n // (16 * units(n)))
    return F["stream_us"] + 1e6 * (2 * n * k / (COPY * F["stream_memory"]) + 2 * rows * k * blocks / F["to_blocks"])


def products_us(rows):
    if rows <= 64:
        return sum(stream_us(rows, n, k) for n, k, _ in PRODUCTS)
    flop = 2 * rows * sum(n * k for n, k, _ in PRODUCTS)
    rate = F["prompt_rate"] if rows > 1024 else F["many_rate"]
    return 1e6 * max(WEIGHTS / COPY / 0.92, flop / (MATRIX * rate))


def attend_us(rows, positions):
    rounds = -(-rows * KV * -(-positions // 512) // (8 * N_SM))
    return F["attend_us"] + (rounds - 1) * F["round_us"] + 1e6 * rows * positions * KV_BYTES / (COPY * F["attend_memory"])


def adapters_us(rows, adapters):
    """Shrink beside, expand behind each product. While streams leave the memory idle, A's bytes are hidden; beside cuBLAS's
    products of many rows, which fill the device, they are not."""
    a, b = (adapters * RANK * 2 * sum(o * k if side else n for n, k, o in PRODUCTS) for side in (True, False))
    seen = b + (a if rows > 64 else 0) + (rows * 10 * sum(n for n, _, _ in PRODUCTS) if rows > 64 else 0)
    return len(PRODUCTS) * (F["gap_us"] + F["lora_us"]) + 1e6 * seen / (COPY * F["lora_memory"])


def decode_ms(rows, positions, adapters=0):
    launches = 7  # two norms, four products, attention
    if rows > 64:
        launches += 2  # cuBLAS neither gates nor adds
    layer = launches * F["gap_us"] + 2 * F["norm_us"] + products_us(rows) + attend_us(rows, positions)
    layer += adapters_us(rows, adapters) if adapters else 0
    head = 1e6 * 2 * VOCAB * DIM / (COPY * 0.92)
    return (LAYERS * layer + head + F["rest_us"]) / 1e3


def prompts_ms(seqs, length):
    rows = seqs * length
    attend = 4 * seqs * HEADS * HEAD * length * (length + 1) / 2 / F["prompt_attend"]
    moved = rows * (10 * sum(n for n, _, _ in PRODUCTS) + 12 * DIM)  # f32 sums written and read, their halves; two norms
    return LAYERS * (products_us(rows) + 1e6 * (attend + moved / (COPY * F["rows_memory"])) + 9 * F["gap_us"]) / 1e3


def inside_ms(rows, positions, adapters):
    """LoRA inside products (gemm_lora.cu): its bytes behind the weights, by the same ring."""
    bytes_ = adapters * RANK * 2 * sum(o * k + n for n, k, o in PRODUCTS)
    return decode_ms(rows, positions) + LAYERS * 1e3 * bytes_ / (COPY * F["stream_memory"]) + LAYERS * 4 * 0.5 / 1e3


MEASURED = {  # name: measured, unit, the model
    "decode, 32 rows over 1,024": (6.83, "ms", lambda: decode_ms(32, 1024)),
    "the same, one adapter": (7.65, "ms", lambda: decode_ms(32, 1024, 1)),
    "the same, 32 adapters": (8.02, "ms", lambda: decode_ms(32, 1024, 32)),
    "prompts, 4 x 2,048": (219, "ms", lambda: prompts_ms(4, 2048)),
    "attention, 32 rows over 8,192, a layer": (321, "us", lambda: attend_us(32, 8192)),
    "decode, 256 rows over 512, 256 adapters": (21.4, "ms", lambda: decode_ms(256, 512, 256)),
}
LATER = {
    "decode, 256 rows over 512": ("calibrated", "ms", lambda: decode_ms(256, 512)),
    "decode, 1 row over 512": ("calibrated", "ms", lambda: decode_ms(1, 512)),
    "decode, 32 rows over 512": ("calibrated", "ms", lambda: decode_ms(32, 512)),
    "decode, 32 rows over 32,768": ("calibrated", "ms", lambda: decode_ms(32, 32768)),
    "decode, 32 rows over 1,024, one adapter, LoRA inside": ("estimated", "ms", lambda: inside_ms(32, 1024, 1)),
    "decode, 32 rows over 1,024, 32 adapters, LoRA inside": ("estimated", "ms", lambda: inside_ms(32, 1024, 32)),
}


def main():
    bad = 0
    for (n, k), times in STREAMS.items():
        for rows, us in zip((16, 32), times):
            by = stream_us(rows, n, k) + EVENTS_US
            bad += abs(by / us - 1) > 0.1
            print(f"{f'product of {n} x {k}, {rows} rows':54} measured   {us:8.2f} us   model {by:8.2f}  {100 * (by / us - 1):+5.1f} %")
    for name, (was, unit, model) in MEASURED.items():
        by = model()
        bad += abs(by / was - 1) > 0.05
        print(f"{name:54} measured   {was:8.2f} {unit}   model {by:8.2f}  {100 * (by / was - 1):+5.1f} %")
    for name, (label, unit, model) in LATER.items():
        print(f"{name:54} {label:10} {model():8.2f} {unit}")
    return 1 if bad and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
