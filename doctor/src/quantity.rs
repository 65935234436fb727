//! Formatting of times, sizes and rates.

use std::fmt;

/// Nanoseconds as `0.99 ms`.
pub(crate) struct Time(pub u64);

/// Bits per second as `3.1 Gbit/s`.
pub(crate) struct Rate(pub f64);

/// Bytes as `4096 B`, `64 KiB`.
pub(crate) struct Bytes(pub u64);

/// `1 message`, `1,204 messages`.
pub(crate) struct Count<'a>(pub u64, pub &'a str);

/// A share of 0 to 1 as `78 %`.
pub(crate) struct Percent(pub f64);

/// Three significant digits, without trailing zeros.
fn three_digits(value: f64) -> String {
    let text = match value {
        v if v >= 99.95 => return format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} ns", self.0),
            1_000..999_500 => write!(f, "{} µs", three_digits(ns / 1e3)),
            999_500..999_500_000 => write!(f, "{} ms", three_digits(ns / 1e6)),
            _ => write!(f, "{} s", three_digits(ns / 1e9)),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bps if bps >= 999.5e6 => write!(f, "{} Gbit/s", three_digits(bps / 1e9)),
            bps if bps >= 999.5e3 => write!(f, "{} Mbit/s", three_digits(bps / 1e6)),
            bps if bps >= 999.5 => write!(f, "{} kbit/s", three_digits(bps / 1e3)),
            bps => write!(f, "{bps:.0} bit/s"),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KI: u64 = 1 << 10;
        const MI: u64 = 1 << 20;
        const GI: u64 = 1 << 30;
        match self.0 {
            bytes if bytes >= GI => write!(f, "{} GiB", three_digits(bytes as f64 / GI as f64)),
            bytes if bytes >= 10 * MI || (bytes >= MI && bytes.is_multiple_of(MI)) => {
                write!(f, "{} MiB", three_digits(bytes as f64 / MI as f64))
            }
            bytes if bytes >= 100 * KI || (bytes > 4 * KI && bytes.is_multiple_of(KI)) => {
                write!(f, "{} KiB", three_digits(bytes as f64 / KI as f64))
            }
            bytes => write!(f, "{bytes} B"),
        }
    }
}

/// Digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl fmt::Display for Count<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} {}{plural}", grouped(self.0), self.1)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 * 100.0 {
            p if p > 0.0 && p < 0.1 => f.write_str("less than 0.1 %"),
            p if p < 9.95 => write!(f, "{} %", three_digits((p * 10.0).round() / 10.0)),
            p => write!(f, "{p:.0} %"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_have_three_digits() {
        for (ns, text) in [
            (999, "999 ns"),
            (1_500, "1.5 µs"),
            (992_000, "992 µs"),
            (999_900, "1 ms"),
            (10_000_000, "10 ms"),
        ] {
            assert_eq!(Time(ns).to_string(), text);
        }
        assert_eq!(Time(655_360_000).to_string(), "655 ms");
        assert_eq!(Time(2_147_483_648).to_string(), "2.15 s");
        assert_eq!(Rate(3.14e9).to_string(), "3.14 Gbit/s");
        assert_eq!(Rate(98.27e9).to_string(), "98.3 Gbit/s");
    }

    #[test]
    fn counts_are_grouped_and_plural() {
        assert_eq!(Count(1, "message").to_string(), "1 message");
        assert_eq!(Count(1_234_567, "message").to_string(), "1,234,567 messages");
        assert_eq!(Count(0, "frame").to_string(), "0 frames");
    }

    #[test]
    fn sizes_are_exact_where_they_are_short() {
        for (bytes, text) in [
            (512, "512 B"),
            (4096, "4096 B"),
            (5000, "5000 B"),
            (65_536, "64 KiB"),
            (8 << 20, "8 MiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Percent(0.784).to_string(), "78 %");
        assert_eq!(Percent(0.0123).to_string(), "1.2 %");
    }
}
