//! What perftest prints.

/// Column of the average bandwidth, in the result line of a bandwidth test.
pub const BANDWIDTH: usize = 3;
/// Column of the message rate in millions per second, in the result line of a bandwidth test.
pub const MESSAGE_RATE: usize = 4;
/// Column of the least latency in µs, in the result line of a latency test.
pub const LEAST: usize = 2;
/// Column of the typical (median) latency in µs, in the result line of a latency test.
pub const TYPICAL: usize = 4;

/// The figures of the last result line.
///
/// # Panics
/// When there is none.
pub fn figures(output: &str) -> Vec<f64> {
    let mut rows = output.lines().rev().filter_map(|line| {
        let row: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        row.filter(|row| row.len() >= 4)
    });
    rows.next().unwrap_or_else(|| panic!("no result line in\n{output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_result_line_counts() {
        let output = " #bytes  #iterations  BW peak[Gb/sec]  BW average[Gb/sec]   MsgRate[Mpps]\n \
                      64   1000    0.00   0.31  \t\t 0.605\n 65536   10000   0.00   9.81 \t 0.018715\n---\n";
        assert_eq!(figures(output), [65536.0, 10000.0, 0.0, 9.81, 0.018715]);
    }
}
