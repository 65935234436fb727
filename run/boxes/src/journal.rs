//! The journal of a running box on standard error: text lines, or JSON objects, one per line.

use crate::status::BoxStatus;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Format of the lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Time and message.
    #[default]
    Text,
    /// An object with time, level, box, message and, for a line about a pair, pair.
    Json,
}

/// Severity of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Normal operation.
    Info,
    /// An operator should act.
    Warning,
}

/// One line.
#[derive(Serialize)]
struct Entry<'a> {
    time: String,
    level: Level,
    #[serde(rename = "box", skip_serializing_if = "Option::is_none")]
    box_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pair: Option<&'a str>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a BoxStatus>,
}

/// Format, and name of the box.
static WRITTEN: OnceLock<(Form, String)> = OnceLock::new();

/// Sets the format and the box's name for all further lines. Only the first call has an effect.
pub fn write_as(form: Form, box_name: &str) {
    let _ = WRITTEN.set((form, box_name.to_owned()));
}

/// Writes an informational line.
pub fn line(text: &str) {
    write(Level::Info, None, text, None);
}

/// Writes a warning.
pub fn warn(text: &str) {
    write(Level::Warning, None, text, None);
}

/// Writes a line about a pair.
pub fn of_pair(level: Level, pair: &str, text: &str) {
    write(level, Some(pair), text, None);
}

/// Writes the box's state.
pub fn state(state: &BoxStatus) {
    write(Level::Info, None, "state", Some(state));
}

fn write(level: Level, pair: Option<&str>, message: &str, state: Option<&BoxStatus>) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let written = WRITTEN.get();
    let (form, box_name) =
        written.map_or((Form::Text, None), |(form, name)| (*form, Some(&**name)));
    let entry = Entry { time: utc(since.as_millis()), level, box_name, pair, message, state };
    eprint!("{}", entry.text(form));
}

impl Entry<'_> {
    /// Formats the entry, as one or more lines.
    fn text(&self, form: Form) -> String {
        match (form, self.state) {
            (Form::Json, _) => serde_json::to_string(self).unwrap_or_default() + "\n",
            (Form::Text, Some(state)) => {
                state.to_text().lines().map(|line| format!("{} {line}\n", self.time)).collect()
            }
            (Form::Text, None) => {
                let pair = self.pair.map_or_else(String::new, |pair| format!("pair {pair}: "));
                format!("{} {pair}{}\n", self.time, self.message)
            }
        }
    }
}

/// Formats milliseconds since 1970 as UTC (RFC 3339).
fn utc(ms: u128) -> String {
    let days = ms / 86_400_000;
    let (hour, minute, second) = (ms / 3_600_000 % 24, ms / 60_000 % 60, ms / 1000 % 60);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

/// Year, month and day of a day count since 1 January 1970. Years start in March here, so that leap
/// days are last and every 400 years have equal length.
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
    fn lines_say_the_same_in_both_forms() {
        let entry = Entry {
            time: utc(0),
            level: Level::Warning,
            box_name: Some("west"),
            pair: Some("one"),
            message: "a \"port\"\nis down",
            state: None,
        };
        assert_eq!(
            entry.text(Form::Text),
            "1970-01-01T00:00:00.000Z pair one: a \"port\"\nis down\n"
        );
        let json = entry.text(Form::Json);
        assert_eq!(json.lines().count(), 1, "{json}");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&value["level"], &value["box"], &value["pair"]),
            (&"warning".into(), &"west".into(), &"one".into())
        );
        assert_eq!(
            (&value["message"], &value["state"]),
            (&"a \"port\"\nis down".into(), &serde_json::Value::Null)
        );
    }

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
