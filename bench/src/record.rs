//! One result.

use crate::point::{Point, Scalar};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Version of the schema of result files. It grows when a field changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// Where figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Others measured or printed it.
    Published,
    /// A formula gives it.
    Theory,
    /// The planner's formulas.
    Predicted,
    /// The protocol code in virtual time.
    Simulated,
    /// Measured here, in real time.
    Measured,
}

impl Source {
    /// All, in the order of columns.
    pub const ALL: [Source; 5] =
        [Source::Published, Source::Theory, Source::Predicted, Source::Simulated, Source::Measured];

    /// Its name, as in files.
    pub fn name(self) -> &'static str {
        match self {
            Source::Published => "published",
            Source::Theory => "theory",
            Source::Predicted => "predicted",
            Source::Simulated => "simulated",
            Source::Measured => "measured",
        }
    }

    /// True if no run of ours produces its figures: others are held against them.
    pub fn is_given(self) -> bool {
        matches!(self, Source::Published | Source::Theory)
    }
}

/// How a result came about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Version of the program.
    pub longhaul: String,
    /// Seed of everything random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Number of the repeat of a measured point, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat: Option<u32>,
    /// Command line.
    pub command: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// Real time that it took, in seconds.
    pub wall_s: f64,
    /// Name of the machine.
    pub host: String,
    /// Threads that worked on it.
    pub threads: u32,
    /// The machine: kernel, processor, versions and settings, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

/// When a run began; becomes a [`Provenance`] when it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    at: SystemTime,
    since: Instant,
}

impl Started {
    /// Now.
    pub fn now() -> Self {
        Started { at: SystemTime::now(), since: Instant::now() }
    }

    /// Of this process and machine, with the time gone since then.
    pub fn provenance(&self, seed: Option<u64>, threads: u32) -> Provenance {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Provenance {
            longhaul: env!("CARGO_PKG_VERSION").to_owned(),
            seed,
            repeat: None,
            command: std::env::args().collect::<Vec<_>>().join(" "),
            started_at: rfc3339(
                self.at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            ),
            wall_s: (self.since.elapsed().as_secs_f64() * 1e6).round() / 1e6,
            host: host.trim().to_owned(),
            threads,
            environment: BTreeMap::new(),
        }
    }
}

/// The date and time of `unix_s` seconds after 1970, UTC.
pub fn rfc3339(unix_s: u64) -> String {
    let (days, rest) = ((unix_s / 86_400) as i64, unix_s % 86_400);
    // Years that begin in March have their leap day last; 719,468 days lie between 1 March 0000 and
    // 1970.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Seconds from 1970 to a date as [`rfc3339`] writes it; `None` for any other text.
pub(crate) fn unix_s(date: &str) -> Option<u64> {
    let number = |from: usize, to: usize| date.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    // Years that begin in March have their leap day last.
    let (year, month) =
        if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400;
    let days = (days + (153 * month + 2) / 5 + day).checked_sub(1 + 719_468)?;
    let at = days * 86_400 + hour * 3600 + minute * 60 + second;
    (rfc3339(at) == date).then_some(at)
}

/// What one client measured with its server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairRecord {
    /// Host of the client.
    pub client: String,
    /// Host of the server.
    pub server: String,
    /// Results by name.
    #[serde(serialize_with = "numbers")]
    pub values: BTreeMap<String, f64>,
}

/// One point of one experiment from one source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the experiment: letters, digits, `.`, `_` and `-`.
    pub experiment: String,
    /// Where the figures come from.
    pub source: Source,
    /// Parameters.
    pub point: Point,
    /// Results by name, which ends in the unit; finite.
    #[serde(serialize_with = "numbers")]
    pub values: BTreeMap<String, f64>,
    /// Single observations by name, such as the latency of each message, in the order in which they
    /// were made. Without a value of the same name, their mean is the value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub samples: BTreeMap<String, Vec<f64>>,
    /// Interval in seconds of the series among the samples: rates of devices, fill of their
    /// send queues and processor time of programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_s: Option<f64>,
    /// Increase of counters of devices during the run, by device and name. Tables leave them out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", serialize_with = "numbers")]
    pub counters: BTreeMap<String, f64>,
    /// What could not be recorded, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, String>,
    /// What each pair of a client and a server measured, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairRecord>,
    /// Values that the run owes because it ended in an error, with the error.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<String, String>,
    /// How it came about; published figures have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// What else there is to say, such as what limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// A constant was fitted on this point: agreement here proves nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fitted: bool,
}

fn numbers<S: Serializer>(
    values: &BTreeMap<String, f64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(values.iter().map(|(key, value)| (key, Scalar::Number(*value))))
}

impl Record {
    /// Of `experiment` at `point`, without values yet.
    pub fn new(experiment: &str, source: Source, point: Point) -> Self {
        Record {
            experiment: experiment.to_owned(),
            source,
            point,
            values: BTreeMap::new(),
            samples: BTreeMap::new(),
            sample_s: None,
            counters: BTreeMap::new(),
            absent: BTreeMap::new(),
            pairs: Vec::new(),
            failed: BTreeMap::new(),
            provenance: None,
            note: None,
            fitted: false,
        }
    }

    /// With one more value.
    #[must_use]
    pub fn value(mut self, name: &str, value: f64) -> Self {
        self.values.insert(name.to_owned(), value);
        self
    }

    /// With single observations of `name`.
    #[must_use]
    pub fn with_samples(mut self, name: &str, samples: Vec<f64>) -> Self {
        self.samples.insert(name.to_owned(), samples);
        self
    }

    /// Without the value `name`, because the run ended in an error.
    #[must_use]
    pub fn failure(mut self, name: &str, why: impl Into<String>) -> Self {
        self.failed.insert(name.to_owned(), why.into());
        self
    }

    /// With how it came about.
    #[must_use]
    pub fn from_run(mut self, provenance: Provenance) -> Self {
        self.provenance = Some(provenance);
        self
    }

    /// With a note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// As one that a constant was fitted on.
    #[must_use]
    pub fn fitted(mut self) -> Self {
        self.fitted = true;
        self
    }

    pub(crate) fn seed(&self) -> Option<u64> {
        self.provenance.as_ref().and_then(|provenance| provenance.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_across_leap_days() {
        let dates = [0, 951_782_399, 951_782_400, 1_709_164_800, 1_735_689_599].map(rfc3339);
        let expected = [
            "1970-01-01T00:00:00Z",
            "2000-02-28T23:59:59Z",
            "2000-02-29T00:00:00Z",
            "2024-02-29T00:00:00Z",
            "2024-12-31T23:59:59Z",
        ];
        assert_eq!(dates, expected);
        let read = expected.map(unix_s);
        assert_eq!(read, [0, 951_782_399, 951_782_400, 1_709_164_800, 1_735_689_599].map(Some));
        for other in ["", "2024-02-30T00:00:00Z", "2024-02-29", "1969-12-31T23:59:59Z"] {
            assert_eq!(unix_s(other), None, "{other}");
        }
    }
}
