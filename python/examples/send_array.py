"""Sends a numpy array as a station does: a tone in noise, in windows of 8-bit samples.

    longhaul exec --host a -- python send_array.py 10.77.0.2:7700
"""

import argparse

import numpy as np

import longhaul

SUBBANDS = 16
BLOCKS = 16
SAMPLES = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("to", metavar="HOST:PORT", help="the receiver's session address")
    parser.add_argument("--windows", type=int, default=20, help="windows to send")
    parser.add_argument("--rate", type=float, default=1e9, help="payload rate in bit/s")
    parser.add_argument("--gap", type=float, default=0.0, help="share of messages to leave out")
    parser.add_argument("--tone", type=float, default=0.2, help="frequency, in cycles per sample")
    options = parser.parse_args()

    random = np.random.default_rng(1)
    messages = SUBBANDS * BLOCKS
    time = np.arange(options.windows * messages * SAMPLES)
    samples = 40 * np.sin(2 * np.pi * options.tone * time) + random.normal(0, 10, time.size)
    windows = samples.astype(np.int8).reshape(options.windows, messages, SAMPLES)

    with longhaul.Sender(
        options.to,
        subbands=SUBBANDS,
        blocks=BLOCKS,
        message_bytes=SAMPLES,
        rate=options.rate,
        gap=options.gap,
    ) as sender:
        sender.send(windows)
    sent = sender.finish()
    print(f"sent {sent.messages} messages of {sent.windows} windows, left out {sent.unsent}")
    print(f"the receiver has {sent.present} and misses {sent.missing}")


if __name__ == "__main__":
    main()
