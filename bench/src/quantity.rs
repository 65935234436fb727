//! Numbers with their units, as people read them.

/// What a number measures, by the unit that ends its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantity {
    label: String,
    family: Family,
    /// What one of the number is in the family's own unit.
    base: f64,
}

/// Units that turn into each other by a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Rate,
    Bytes,
    Time,
    Distance,
    Percent,
    Power,
    Energy,
    PerSecond,
    Count,
}

/// A unit for a whole axis or column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Unit {
    /// Its name; empty for plain numbers.
    pub name: &'static str,
    /// What a number is divided by.
    pub divisor: f64,
}

/// Endings of names, the unit's family, and its size in the family's own unit.
const SUFFIXES: [(&str, Family, f64); 24] = [
    ("_per_s", Family::PerSecond, 1.0),
    ("_bps", Family::Rate, 1.0),
    ("_kbps", Family::Rate, 1e3),
    ("_mbps", Family::Rate, 1e6),
    ("_gbps", Family::Rate, 1e9),
    ("_bytes", Family::Bytes, 1.0),
    ("_ps", Family::Time, 1e-12),
    ("_ns", Family::Time, 1e-9),
    ("_us", Family::Time, 1e-6),
    ("_ms", Family::Time, 1e-3),
    ("_km", Family::Distance, 1e3),
    ("_percent", Family::Percent, 1.0),
    ("_watts", Family::Power, 1.0),
    ("_joules", Family::Energy, 1.0),
    ("_kw", Family::Power, 1e3),
    ("_ws", Family::Energy, 1.0),
    ("_nj", Family::Energy, 1e-9),
    ("_pps", Family::PerSecond, 1.0),
    ("_iops", Family::PerSecond, 1.0),
    ("_hz", Family::PerSecond, 1.0),
    ("_seconds", Family::Time, 1.0),
    ("_m", Family::Distance, 1.0),
    ("_s", Family::Time, 1.0),
    ("_w", Family::Power, 1.0),
];

impl Family {
    /// Its units, the smallest first.
    fn units(self) -> &'static [Unit] {
        const fn unit(name: &'static str, divisor: f64) -> Unit {
            Unit { name, divisor }
        }
        match self {
            Family::Rate => {
                const {
                    &[
                        unit("bit/s", 1.0),
                        unit("kbit/s", 1e3),
                        unit("Mbit/s", 1e6),
                        unit("Gbit/s", 1e9),
                    ]
                }
            }
            Family::Bytes => {
                const {
                    &[
                        unit("B", 1.0),
                        unit("KiB", 1024.0),
                        unit("MiB", 1_048_576.0),
                        unit("GiB", 1_073_741_824.0),
                        unit("TiB", 1_099_511_627_776.0),
                    ]
                }
            }
            Family::Time => {
                const {
                    &[
                        unit("ps", 1e-12),
                        unit("ns", 1e-9),
                        unit("µs", 1e-6),
                        unit("ms", 1e-3),
                        unit("s", 1.0),
                    ]
                }
            }
            Family::Distance => const { &[unit("m", 1.0), unit("km", 1e3)] },
            Family::Percent => const { &[unit("%", 1.0)] },
            Family::Power => const { &[unit("W", 1.0), unit("kW", 1e3), unit("MW", 1e6)] },
            Family::Energy => {
                const {
                    &[
                        unit("pJ", 1e-12),
                        unit("nJ", 1e-9),
                        unit("µJ", 1e-6),
                        unit("mJ", 1e-3),
                        unit("W·s", 1.0),
                        unit("kW·s", 1e3),
                        unit("MW·s", 1e6),
                    ]
                }
            }
            Family::PerSecond => {
                const { &[unit("/s", 1.0), unit("thousand/s", 1e3), unit("million/s", 1e6)] }
            }
            Family::Count => const { &[unit("", 1.0)] },
        }
    }
}

impl Quantity {
    /// Of what `key` names: `goodput_bps` is a rate called goodput, `qps` a count. Endings: `_bps`
    /// with k, m, g; `_bytes`; `_ps`, `_ns`, `_us`, `_ms`, `_s`; `_m`, `_km`; `_percent`; `_w`,
    /// `_ws`, `_nj`; `_per_s`, `_pps`, `_iops`.
    pub fn of(key: &str) -> Self {
        let known = SUFFIXES.iter().find_map(|&(suffix, family, base)| {
            let name = key.strip_suffix(suffix).filter(|name| !name.is_empty())?;
            Some((name, family, base))
        });
        let (name, family, base) = known.unwrap_or((key, Family::Count, 1.0));
        let label = match key {
            "qps" => "QPs".to_owned(),
            _ => name
                .replace('_', " ")
                .replace("rtt", "RTT")
                .replace("mtu", "MTU")
                .replace("qp ", "QP "),
        };
        Quantity { label, family, base }
    }

    /// Name and size of the unit that measures its family without a prefix, as in `seconds`; empty
    /// for a count.
    pub(crate) fn base(&self) -> (&'static str, f64) {
        let (name, scale) = match self.family {
            Family::Rate => ("bits_per_second", 1.0),
            Family::Bytes => ("bytes", 1.0),
            Family::Time => ("seconds", 1.0),
            Family::Distance => ("meters", 1.0),
            Family::Percent => ("ratio", 0.01),
            Family::Power => ("watts", 1.0),
            Family::Energy => ("joules", 1.0),
            Family::PerSecond => ("per_second", 1.0),
            Family::Count => ("", 1.0),
        };
        (name, self.base * scale)
    }

    /// `key` without its unit.
    pub(crate) fn stem(key: &str) -> &str {
        let stems = SUFFIXES.iter().filter_map(|(suffix, ..)| key.strip_suffix(suffix));
        stems.into_iter().find(|stem| !stem.is_empty()).unwrap_or(key)
    }

    /// The name without its unit, for people.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// True for sizes, which go in powers of two.
    pub(crate) fn is_binary(&self) -> bool {
        self.family == Family::Bytes
    }

    /// True for plain numbers.
    pub(crate) fn is_count(&self) -> bool {
        self.family == Family::Count
    }

    /// The largest unit in which `number` is at least one.
    pub(crate) fn unit(&self, number: f64) -> Unit {
        let (size, units) = (number.abs() * self.base, self.family.units());
        let fits = units.iter().rev().find(|unit| size >= unit.divisor * (1.0 - 1e-9));
        let unit = match fits {
            Some(unit) => *unit,
            // Zero has no size of its own: 0 km, not 0 m.
            None if size == 0.0 => self.own_unit(),
            None => units[0],
        };
        Unit { divisor: unit.divisor / self.base, ..unit }
    }

    fn own_unit(&self) -> Unit {
        let units = self.family.units();
        *units
            .iter()
            .rev()
            .find(|unit| unit.divisor <= self.base * (1.0 + 1e-9))
            .unwrap_or(&units[0])
    }

    /// With the unit that suits it and four significant digits: `97.72 Gbit/s`, `4 KiB`,
    /// `1.905 ms`. Plain numbers below 0.1, such as rates of loss, are powers of ten: `5e-2`.
    pub fn humanised(&self, number: f64) -> String {
        let unit = self.unit(number);
        // Sizes that are no round number in a larger unit are exact in bytes.
        let odd = self.is_binary()
            && number.fract() == 0.0
            && (number / unit.divisor * 64.0).fract() != 0.0;
        let unit =
            if odd && number < 1e6 { Unit { name: "B", divisor: 1.0 / self.base } } else { unit };
        if self.is_count() && number != 0.0 && number.abs() < 0.1 {
            return exponential(number, 4);
        }
        let text = significant(number / unit.divisor, 4);
        match unit.name {
            "" => text,
            "/s" => format!("{text}/s"),
            name => format!("{text} {name}"),
        }
    }
}

/// `number` with so many significant digits, without zeros at the end; whole numbers below ten
/// million in full.
pub(crate) fn significant(number: f64, digits: i32) -> String {
    if number == 0.0 || !number.is_finite() {
        return if number == 0.0 { "0".to_owned() } else { number.to_string() };
    }
    if number.fract() == 0.0 && number.abs() < 1e7 {
        return format!("{number:.0}");
    }
    let exponent = number.abs().log10().floor() as i32;
    if !(-3..7).contains(&exponent) {
        return exponential(number, digits);
    }
    let decimals = (digits - 1 - exponent).max(0) as usize;
    let text = format!("{number:.decimals$}");
    if text.contains('.') { trimmed(&text).to_owned() } else { text }
}

/// `number` as a power of ten: `1.5e-3`.
fn exponential(number: f64, digits: i32) -> String {
    let text = format!("{number:.*e}", (digits - 1).max(0) as usize);
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let mantissa = if mantissa.contains('.') { trimmed(mantissa) } else { mantissa };
    format!("{mantissa}e{power}")
}

fn trimmed(text: &str) -> &str {
    text.trim_end_matches('0').trim_end_matches('.')
}

/// A deviation, as a fraction, in percent with its sign.
pub(crate) fn percent(fraction: f64) -> String {
    let value = fraction * 100.0;
    match value.abs() {
        _ if value.is_nan() => "?".to_owned(),
        size if size.is_infinite() => if value > 0.0 { "+∞ %" } else { "−∞ %" }.to_owned(),
        size if size < 0.005 => "0.00 %".to_owned(),
        size => {
            let decimals = if size < 9.995 { 2 } else { usize::from(size < 99.95) };
            format!("{}{size:.decimals$} %", if value > 0.0 { '+' } else { '−' })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn human(key: &str, number: f64) -> String {
        Quantity::of(key).humanised(number)
    }

    #[test]
    fn the_name_tells_the_unit() {
        assert_eq!(human("goodput_bps", 97.72e9), "97.72 Gbit/s");
        assert_eq!(human("goodput_gbps", 0.3), "300 Mbit/s");
        assert_eq!(human("latency_us", 1905.171), "1.905 ms");
        assert_eq!(human("latency_ns", 2.0), "2 ns");
        assert_eq!(human("distance_km", 1534.0), "1534 km");
        assert_eq!(human("distance_km", 0.5), "500 m");
        assert_eq!(human("qps", 4096.0), "4096");
        let losses = [0.0, 1e-5, 1e-3, 1e-2, 5e-2, 1.5e-3].map(|loss| human("path.loss", loss));
        assert_eq!(losses, ["0", "1e-5", "1e-3", "1e-2", "5e-2", "1.5e-3"]);
        assert_eq!(human("energy_ws", 2946.0), "2.946 kW·s");
        assert_eq!(human("energy_per_bit_psu_nj", 11.25), "11.25 nJ");
        assert_eq!(human("events_per_s", 2.01e7), "20.1 million/s");
    }

    #[test]
    fn sizes_are_binary_and_exact_where_they_are_odd() {
        let texts = [2.0, 512.0, 4096.0, 8_388_608.0, 1000.0, 4178.0, 1536.0]
            .map(|b| human("message_bytes", b));
        assert_eq!(texts, ["2 B", "512 B", "4 KiB", "8 MiB", "1000 B", "4178 B", "1.5 KiB"]);
    }

    #[test]
    fn zero_keeps_the_unit_of_its_name() {
        assert_eq!(human("distance_km", 0.0), "0 km");
        assert_eq!(human("rtt_ms", 0.0), "0 ms");
        assert_eq!(human("goodput_bps", 0.0), "0 bit/s");
    }

    #[test]
    fn deviations_have_a_sign_and_as_many_digits_as_tell_something() {
        let texts = [0.0031, -0.0523, 0.25, 12.0, 0.00001, f64::INFINITY].map(percent);
        assert_eq!(texts, ["+0.31 %", "−5.23 %", "+25.0 %", "+1200 %", "0.00 %", "+∞ %"]);
    }
}
