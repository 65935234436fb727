"""Plots which messages of a station arrived, and the spectrum of what did.

    longhaul exec --host b -- python presence.py --out presence.png

The messages are those of send_array.py.
"""

import argparse

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import longhaul

MESSAGES = 256
SAMPLES = 4096


def plot(fates: np.ndarray, spectrum: np.ndarray, file: str) -> None:
    figure, (above, below) = plt.subplots(2, layout="constrained", figsize=(8, 7))
    colours = ListedColormap(plt.get_cmap("tab10").colors[: len(longhaul.Fate)])
    bounds = {"vmin": -0.5, "vmax": len(longhaul.Fate) - 0.5}
    shown = above.imshow(fates, aspect="auto", interpolation="nearest", cmap=colours, **bounds)
    above.set(title="Messages", xlabel="slot", ylabel="window")
    scale = figure.colorbar(shown, ax=above, ticks=list(longhaul.Fate))
    scale.ax.set_yticklabels([fate.name.lower().replace("_", " ") for fate in longhaul.Fate])
    frequency = np.fft.rfftfreq(SAMPLES)
    below.plot(frequency, 10 * np.log10(np.maximum(spectrum, 1e-12)))
    below.set(title="Spectrum", xlabel="cycles per sample", ylabel="power (dB)")
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", default="0.0.0.0:7700", help="address for sessions")
    parser.add_argument("--out", default="presence.png", help="file of the plot")
    options = parser.parse_args()

    fates, powers = [], np.zeros(SAMPLES // 2 + 1)
    with longhaul.Receiver(
        listen=options.listen, slots=MESSAGES, message_bytes=SAMPLES, until_idle=True
    ) as receiver:
        print("listening on {}:{}".format(*receiver.address), flush=True)
        for chunk in receiver:
            with chunk:
                samples = chunk.data[0].view(np.int8)[chunk.present[0]]
                power = (np.abs(np.fft.rfft(samples)) ** 2).sum(axis=0)
                fates.append(chunk.fates[0])
                # Unless the station overwrote the chunk while it was read.
                if chunk.release() == 0:
                    powers += power
    if not fates:
        raise SystemExit("nothing was received")
    present = sum(int((row == longhaul.Fate.PRESENT).sum()) for row in fates)
    plot(np.array(fates), powers / max(present, 1), options.out)
    peak = np.fft.rfftfreq(SAMPLES)[powers.argmax()]
    print(f"{present} of {len(fates) * MESSAGES} messages; peak at {peak:.3f} cycles per sample")
    print(options.out)


if __name__ == "__main__":
    main()
