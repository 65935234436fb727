//! qperf's `name = value unit`.

use super::unit::unit;
use super::{NoResult, Values};

/// Names of qperf, and of results.
const NAMES: [(&str, &str); 5] = [
    ("bw", "goodput"),
    ("recv_bw", "goodput"),
    ("send_bw", "sent"),
    ("latency", "latency_mean"),
    ("msg_rate", "messages"),
];

/// Reads every value that has a unit.
pub fn read(output: &str) -> Result<Values, NoResult> {
    let values: Values = output.lines().filter_map(value).collect();
    if values.is_empty() {
        return Err(NoResult::new("qperf printed no value"));
    }
    Ok(values)
}

fn value(line: &str) -> Option<(String, f64)> {
    let (name, rest) = line.split_once('=')?;
    let mut words = rest.split_whitespace();
    let figure: f64 = words.next()?.replace(',', "").parse().ok()?;
    let unit = unit(words.next()?)?;
    let name = name.trim();
    let known = NAMES.iter().find(|(known, _)| *known == name).map_or(name, |(_, known)| known);
    Some((format!("{known}{}", unit.suffix), figure * unit.factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_units() {
        let text = "rc_bw:\n    bw             =  3.93 GB/sec\n    msg_rate = 60 K/sec\n    \
                    loc_cpus_used  =  95.2 % cpus\n    latency  =  1,024 us\n    \
                    msg_size = 64 KB\n";
        let values = read(text).unwrap();
        for (name, figure) in [
            ("goodput_bps", 31.44e9),
            ("messages_per_s", 60e3),
            ("loc_cpus_used_percent", 95.2),
            ("latency_mean_ns", 1.024e6),
            ("msg_size_bytes", 64e3),
        ] {
            assert!((values[name] / figure - 1.0).abs() < 1e-9, "{name}: {values:?}");
        }
        assert!(read("failed to connect").is_err());
    }
}
