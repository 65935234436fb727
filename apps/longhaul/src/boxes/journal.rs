//! What a running box has to say, on standard error, each line with its time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Writes a line.
pub fn line(text: &str) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    eprintln!("{} {text}", utc(since.as_millis()));
}

/// Milliseconds since 1970 as UTC, in the form of RFC 3339.
fn utc(ms: u128) -> String {
    let days = ms / 86_400_000;
    let (hour, minute, second) = (ms / 3_600_000 % 24, ms / 60_000 % 60, ms / 1000 % 60);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// The date so many days after 1 January 1970. The year begins in March here, so that the day that comes and goes is its
/// last one, and 400 years are always as long.
fn date(days: u128) -> (u128, u128, u128) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u128::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(seconds * 1000), text);
        }
        assert_eq!(utc(7), "1970-01-01T00:00:00.007Z");
    }
}
