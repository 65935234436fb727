//! Quantities as text: few digits, and the unit that fits.

/// Formats a message size in binary units.
pub fn size(bytes: u64) -> String {
    for (shift, name) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >> shift > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{} {name}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// Formats an amount of memory, rounded up to a byte, with three significant digits.
pub fn bytes(bytes: f64) -> String {
    scaled(bytes.ceil(), &["B", "kB", "MB", "GB", "TB", "PB"], 3)
}

/// Formats a rate with three significant digits.
pub fn rate(bps: f64) -> String {
    scaled(bps, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"], 3)
}

/// Formats a time with four significant digits.
pub fn time(ns: f64) -> String {
    scaled(ns, &["ns", "µs", "ms", "s"], 4)
}

/// Formats `value` in the largest of `units` that leaves a digit before the point. Each unit is a
/// thousand of the one before.
fn scaled(mut value: f64, units: &[&str], significant: i32) -> String {
    // What rounds to 1000 belongs to the next unit.
    let most = 1000.0 - 0.5 * 10_f64.powi(3 - significant);
    let mut unit = 0;
    while value >= most && unit + 1 < units.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let text = digits(value, significant);
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text} {}", units[unit])
}

/// Formats `value` with `significant` digits, or all integer digits.
pub fn digits(value: f64, significant: i32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = (significant - 1 - value.abs().log10().floor() as i32).max(0);
    format!("{value:.0$}", decimals as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit_and_trailing_zeros_are_dropped() {
        assert_eq!(
            [0.0, 350.0, 3.8e6, 5e9, 67.108_864e6, 999.96e3, 0.25].map(time),
            ["0 ns", "350 ns", "3.8 ms", "5 s", "67.11 ms", "1 ms", "0.25 ns"]
        );
        assert_eq!(
            [0.0, 0.2, 512.0, 47_500.0, 25e6, 6.25e9, 999.6e6].map(bytes),
            ["0 B", "1 B", "512 B", "47.5 kB", "25 MB", "6.25 GB", "1 GB"]
        );
        assert_eq!(
            [0.0, 240e3, 84.2e6, 9.512e9, 97.95e9, 100e9, 1e15].map(rate),
            [
                "0 bit/s",
                "240 kbit/s",
                "84.2 Mbit/s",
                "9.51 Gbit/s",
                "98 Gbit/s",
                "100 Gbit/s",
                "1000 Tbit/s"
            ]
        );
        assert_eq!([3, 4096, 6144, 8 << 20].map(size), ["3 B", "4 KiB", "6 KiB", "8 MiB"]);
    }
}
