//! The table of perftest's programs.

use super::unit::unit;
use super::{NoResult, Values};
use regex::Regex;
use std::sync::LazyLock;

/// A column's heading: `BW average[Gb/sec]`, `99% percentile[usec]`, `t_avg[usec]`.
static HEADING: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"#bytes|#iterations|tps average|([\w.%]+(?: \w+)?)\[([^\]]+)\]").ok()
});

/// Headings, and the values to which they belong.
const NAMES: [(&str, &str); 11] = [
    ("BW average", "goodput"),
    ("BW peak", "peak"),
    ("MsgRate", "messages"),
    ("t_min", "latency_min"),
    ("t_max", "latency_max"),
    ("t_typical", "latency_median"),
    ("t_avg", "latency_mean"),
    ("t_stdev", "latency_stdev"),
    ("99% percentile", "latency_p99"),
    ("99.9% percentile", "latency_p999"),
    ("CPU_Util", "cpu"),
];

/// A column of results: name with its unit, and factor. Bandwidth in `MB/sec` is of 2^20 bytes.
fn column(heading: &str, written: &str) -> Option<(String, f64)> {
    let (_, name) = NAMES.iter().find(|(known, _)| *known == heading)?;
    let written = if written == "MB/sec" { "MiB/sec" } else { written };
    let unit = unit(written)?;
    Some((format!("{name}{}", unit.suffix), unit.factor))
}

/// Reads the results of one test, of whatever columns its table has.
///
/// # Errors
/// There is no table, no line of results, or one for each of several sizes.
pub fn read(output: &str) -> Result<Values, NoResult> {
    let heading = HEADING.as_ref().ok_or_else(|| NoResult::new("no expression for headings"))?;
    let none = || NoResult::new("perftest printed no line of results");
    let mut lines = output.lines();
    let head = lines.find(|line| line.contains("#bytes")).ok_or_else(none)?;
    let columns: Vec<_> = heading
        .captures_iter(head)
        .map(|found| column(found.get(1)?.as_str(), found.get(2)?.as_str()))
        .collect();
    let row = |line: &str| -> Option<Vec<f64>> {
        line.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    let mut rows = lines.filter_map(row).filter(|row| row.len() == columns.len());
    let row = rows.next().ok_or_else(none)?;
    if rows.next().is_some() {
        let why = "perftest printed results of several sizes: use an axis for the size, not -a";
        return Err(NoResult::new(why));
    }
    let named = columns.into_iter().zip(row);
    let mut values: Values = named
        .filter_map(|(column, figure)| column.map(|(name, factor)| (name, figure * factor)))
        .collect();
    // Not measured when a test ends by time.
    values.retain(|name, value| name != "peak_bps" || *value > 0.0);
    Ok(values)
}

/// Latencies of single messages in ns, which `-U` and `-H` list. Empty without them.
pub fn latencies(output: &str) -> Vec<f64> {
    let lines = output.lines().skip_while(|line| line.trim() != "#, usec").skip(1);
    let latency = |line: &str| -> Option<f64> {
        let (_, us) = line.split_once(", ")?;
        Some(us.trim().parse::<f64>().ok()? * 1e3)
    };
    lines.map_while(latency).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(output: &str) -> Vec<(String, f64)> {
        read(output).unwrap().into_iter().collect()
    }

    #[test]
    fn bandwidth_is_read_in_either_unit() {
        let output = "---\n #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   \
                      MsgRate[Mpps]\n 65536      10000            0.00               9.81    \
                      \t\t   0.018715\n---\n";
        let values = of(output);
        assert_eq!(values[0], ("goodput_bps".to_owned(), 9.81e9));
        assert_eq!(values[1].0, "messages_per_s");
        assert!((values[1].1 - 18_715.0).abs() < 1e-6 && values.len() == 2, "{values:?}");
        let output = output.replace("Gb/sec", "MB/sec").replace(" 0.00", " 20.0");
        let values = of(&output);
        assert_eq!(values[0].1, 9.81 * 1_048_576.0 * 8.0);
        assert_eq!(values[2], ("peak_bps".to_owned(), 20.0 * 1_048_576.0 * 8.0));
    }

    #[test]
    fn latency_has_all_its_columns() {
        let output = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    \
                      t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% \
                      percentile[usec] \n 2       1000          1.50           9.75         1.75 \
                      \t       2.00        0.25   \t\t3.25    \t\t4.50 \n";
        let values = read(output).unwrap();
        assert_eq!(values.len(), 7, "{values:?}");
        for (name, us) in [("min", 1.5), ("median", 1.75), ("mean", 2.0), ("p999", 4.5)] {
            assert!((values[&format!("latency_{name}_ns")] - us * 1e3).abs() < 1e-6, "{values:?}");
        }
        let by_time = " #bytes        #iterations       t_avg[usec]    tps average\n 2             \
                       2000            5.25           190476.2\n";
        assert_eq!(of(by_time), [("latency_mean_ns".to_owned(), 5250.0)]);
    }

    #[test]
    fn latencies_of_single_messages_are_listed_before_the_table() {
        let output = " #bytes #iterations t_avg[usec]\n#, usec\n1, 1.5\n2, 12\n---\n #bytes \
                      #iterations t_avg[usec]\n 2       3          2.00   \n";
        assert_eq!(latencies(output), [1500.0, 12_000.0]);
        assert_eq!(of(output), [("latency_mean_ns".to_owned(), 2000.0)]);
        assert_eq!(latencies("#, cycles\n1, 3000\n"), [0.0; 0]);
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for output in ["", "Couldn't listen to port 18515", " #bytes  #iterations t_avg[usec]\n"] {
            assert!(read(output).unwrap_err().0.contains("no line of results"), "{output}");
        }
        let output = " #bytes #iterations t_avg[usec]\n 2 1 1.0\n 4 1 1.0\n";
        assert!(read(output).unwrap_err().0.contains("use an axis for the size"));
    }
}
