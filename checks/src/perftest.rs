//! Parses and checks perftest's output.

/// Column of the average bandwidth, in the result line of a bandwidth test.
pub const BANDWIDTH: usize = 3;
/// Column of the message rate in millions per second, in the result line of a bandwidth test.
pub const MESSAGE_RATE: usize = 4;
/// Column of the minimum latency in µs, in the result line of a latency test.
pub const LEAST: usize = 2;
/// Column of the maximum latency in µs, in the result line of a latency test.
pub const GREATEST: usize = 3;
/// Column of the typical (median) latency in µs, in the result line of a latency test.
pub const TYPICAL: usize = 4;

/// Error messages of perftest that its exit status may not reflect.
const COMPLAINTS: [&str; 7] = [
    "Completion with error",
    "Failed status",
    "Couldn't",
    "Failed to",
    "wrong data",
    "Did not get Message",
    "Unexpected",
];

/// The figures of the last result line.
///
/// # Panics
/// If there is none.
pub fn figures(output: &str) -> Vec<f64> {
    let mut rows = rows(output);
    rows.pop().unwrap_or_else(|| panic!("no result line in\n{output}"))
}

/// The figures of every result line.
pub fn rows(output: &str) -> Vec<Vec<f64>> {
    let parse = |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect();
    output.lines().filter_map(parse).filter(|row: &Vec<f64>| row.len() >= 4).collect()
}

/// The line with an error message, if there is one.
pub fn complaint(output: &str) -> Option<&str> {
    output.lines().find(|line| COMPLAINTS.iter().any(|complaint| line.contains(complaint)))
}

/// Checks that a bandwidth row is plausible: data was transferred, no faster than memory allows,
/// and the message rate agrees with the bandwidth, in MiB/s.
///
/// # Errors
/// A description of the contradiction.
pub fn believable_bandwidth(row: &[f64]) -> Result<(), String> {
    /// 200 GB/s.
    const MOST: f64 = 2e5;
    let &[size, _, _, average, rate, ..] = row else {
        return Err(format!("too few columns: {row:?}"));
    };
    let by_rate = rate * 1e6 * size / f64::from(1 << 20);
    if !(by_rate > 0.0 && average < MOST) {
        return Err(format!("an average of {average} MiB/s, {rate} M/s"));
    }
    // Rounded to 0.01 MiB/s and one message per second.
    let rounding = 0.01 + size / f64::from(1 << 20);
    if (by_rate - average).abs() > rounding + 0.01 * average {
        return Err(format!("{average} MiB/s, but {rate} M/s of {size} B are {by_rate} MiB/s"));
    }
    Ok(())
}

/// Checks that a latency row is plausible: positive, below seconds, in ascending order. With `-D`
/// only the average is printed.
///
/// # Errors
/// A description of the contradiction.
pub fn believable_latency(row: &[f64]) -> Result<(), String> {
    /// 10 s, in µs.
    const MOST: f64 = 1e7;
    let only_average = row.len() == 4;
    let times = if only_average { &row[2..3] } else { row.get(2..6).unwrap_or_default() };
    if times.is_empty() || !times.iter().all(|&time| time > 0.0 && time < MOST) {
        return Err(format!("times of {times:?} µs"));
    }
    let in_order = only_average || (row[LEAST] <= row[TYPICAL] && row[TYPICAL] <= row[GREATEST]);
    if !in_order {
        return Err(format!("least, greatest and typical do not fit: {row:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_SIZES: &str = " #bytes  #iterations  BW peak[Gb/sec]  BW average[Gb/sec]   \
                      MsgRate[Mpps]\n 64   1000    0.00   0.31  \t\t 0.605\n \
                      65536   10000   0.00   9.81 \t 0.018715\n---\n";

    #[test]
    fn the_last_result_line_counts() {
        assert_eq!(figures(TWO_SIZES), [65536.0, 10000.0, 0.0, 9.81, 0.018715]);
    }

    #[test]
    fn every_result_line_is_found() {
        let sizes: Vec<f64> = rows(TWO_SIZES).iter().map(|row| row[0]).collect();
        assert_eq!(sizes, [64.0, 65536.0]);
    }

    #[test]
    fn a_bandwidth_without_messages_is_not_believed() {
        assert_eq!(believable_bandwidth(&[64.0, 100.0, 59.59, 32.32, 0.529459]), Ok(()));
        assert!(believable_bandwidth(&[64.0, 100.0, 59.59, 0.0, 0.0]).is_err());
        assert!(believable_bandwidth(&[64.0, 100.0, 59.59, 32.32, 0.2]).is_err());
        assert!(believable_bandwidth(&[64.0, 100.0, f64::INFINITY, f64::INFINITY, 1.0]).is_err());
    }

    #[test]
    fn latencies_out_of_order_are_not_believed() {
        assert_eq!(believable_latency(&[2.0, 100.0, 1.5, 9.0, 2.0, 2.1, 0.3, 8.0, 9.0]), Ok(()));
        assert_eq!(believable_latency(&[2.0, 1896.0, 265.79, 1881.19]), Ok(()));
        assert!(believable_latency(&[2.0, 100.0, 1.5, 1.6, 2.0, 2.1, 0.3, 8.0, 9.0]).is_err());
        assert!(believable_latency(&[2.0, 100.0, 0.0, 9.0, 2.0, 2.1, 0.3, 8.0, 9.0]).is_err());
    }

    #[test]
    fn complaints_are_found_whatever_the_exit_status() {
        assert_eq!(
            complaint("fine\n Completion with error at client\n"),
            Some(" Completion with error at client")
        );
        assert_eq!(complaint(TWO_SIZES), None);
    }
}
