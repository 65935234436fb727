//! Formats figures for status texts: counts, bytes, times and rates.

/// `1 flow`, `2 flows`.
pub fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("{n} {noun}") } else { format!("{n} {}", plural(noun)) }
}

fn plural(noun: &str) -> String {
    if let Some(stem) = noun.strip_suffix('y') { format!("{stem}ies") } else { format!("{noun}s") }
}

/// Bytes with a binary prefix.
pub fn bytes(bytes: u64) -> String {
    const PREFIXES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (1..PREFIXES.len()).take_while(|power| bytes >> (10 * power) > 0).count();
    let digits = usize::from(power > 0);
    format!("{:.digits$} {}", bytes as f64 / (1u64 << (10 * power)) as f64, PREFIXES[power])
}

/// A time in microseconds, or in milliseconds from 1 ms on.
pub fn microseconds(us: f64) -> String {
    if us < 1000.0 { format!("{us:.0} µs") } else { format!("{:.3} ms", us / 1e3) }
}

/// A rate in Gbit/s with up to three decimals.
pub fn gigabits(bits_per_s: f64) -> String {
    format!("{} Gbit/s", (bits_per_s / 1e6).round() / 1e3)
}

/// A fraction: `0.0125`, `1.25e-4`.
pub fn fraction(fraction: f64) -> String {
    if fraction == 0.0 || fraction >= 1e-3 { fraction.to_string() } else { format!("{fraction:e}") }
}

/// A measured fraction with up to two significant digits: `0.013`, `1.3e-4`.
pub fn measured_fraction(measured: f64) -> String {
    fraction(format!("{measured:.1e}").parse().unwrap_or(measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_agrees_with_its_count() {
        let counts = [(0, "0 flows"), (1, "1 flow"), (2, "2 flows")];
        assert_eq!(counts.map(|(n, _)| count(n, "flow")), counts.map(|(_, text)| text));
        assert_eq!(
            (count(1, "parity"), count(2, "parity")),
            ("1 parity".into(), "2 parities".into())
        );
    }

    #[test]
    fn figures_are_short() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (9 << 20, "9.0 MiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        assert_eq!([12.3, 1234.5].map(microseconds), ["12 µs", "1.234 ms"]);
        assert_eq!([0.0, 1.5e9, 1e6].map(gigabits), ["0 Gbit/s", "1.5 Gbit/s", "0.001 Gbit/s"]);
        let fractions = ["0", "1", "0.01", "0.0013", "1.2e-4", "1e-4"];
        assert_eq!([0.0, 1.0, 0.01, 0.001_26, 1.23e-4, 1e-4].map(measured_fraction), fractions);
        assert_eq!([0.0125, 1.25e-4].map(fraction), ["0.0125", "1.25e-4"]);
    }
}
