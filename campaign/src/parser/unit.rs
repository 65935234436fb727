//! Units in the output of programs.

/// What a unit makes of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// End of the value's name.
    pub suffix: &'static str,
    /// Factor of the figure.
    pub factor: f64,
}

/// The unit `text`: a time (`us`, `usec`), bits, bytes or events per second (`Gb/s`, `Gbits/sec`,
/// `Gbps`, `MB/s`, `MiB/sec`, `K/sec`, `Mpps`), bytes (`KiB`), `%`, `W` or `J`.
pub fn unit(text: &str) -> Option<Unit> {
    let of = |suffix, factor| Some(Unit { suffix, factor });
    match text {
        "ns" | "nsec" => return of("_ns", 1.0),
        "us" | "usec" | "µs" => return of("_ns", 1e3),
        "ms" | "msec" => return of("_ns", 1e6),
        "s" | "sec" => return of("_ns", 1e9),
        "%" => return of("_percent", 1.0),
        "W" => return of("_w", 1.0),
        "J" => return of("_ws", 1.0),
        "IOPS" => return of("_iops", 1.0),
        _ => {}
    }
    if let Some(rest) = text.strip_suffix("bps") {
        return of("_bps", prefix(rest)?);
    }
    if let Some(rest) = text.strip_suffix("pps") {
        return of("_per_s", prefix(rest)?);
    }
    if let Some(rest) = text.strip_suffix("/s").or_else(|| text.strip_suffix("/sec")) {
        if let Some(rest) = end(rest, &["bits", "bit", "b"]) {
            return of("_bps", prefix(rest)?);
        }
        if let Some(rest) = end(rest, &["bytes", "Bytes", "B"]) {
            return of("_bps", prefix(rest)? * 8.0);
        }
        return of("_per_s", prefix(rest)?);
    }
    of("_bytes", prefix(end(text, &["bytes", "Bytes", "B"])?)?)
}

fn end<'a>(text: &'a str, ends: &[&str]) -> Option<&'a str> {
    ends.iter().find_map(|end| text.strip_suffix(end))
}

fn prefix(text: &str) -> Option<f64> {
    Some(match text {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_that_programs_print() {
        for (text, suffix, factor) in [
            ("usec", "_ns", 1e3),
            ("sec", "_ns", 1e9),
            ("Gb/sec", "_bps", 1e9),
            ("Gbits/sec", "_bps", 1e9),
            ("Mbps", "_bps", 1e6),
            ("bytes/sec", "_bps", 8.0),
            ("GB/sec", "_bps", 8e9),
            ("MiB/s", "_bps", 8.0 * 1_048_576.0),
            ("Mpps", "_per_s", 1e6),
            ("K/sec", "_per_s", 1e3),
            ("/sec", "_per_s", 1.0),
            ("KiB", "_bytes", 1024.0),
            ("B", "_bytes", 1.0),
            ("%", "_percent", 1.0),
        ] {
            assert_eq!(unit(text), Some(Unit { suffix, factor }), "{text}");
        }
        for text in ["", "x", "furlong/s", "cpus", "Xbps"] {
            assert_eq!(unit(text), None, "{text}");
        }
    }
}
