//! Quantities with units, by kind.

use super::tree::{Node, Value};
use longhaul_units::{BitRate, Duration, QuantityError, distance_m, probability, size_bytes};

/// Kind of a key's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueKind {
    /// Any text.
    Text,
    /// The name of a station, link or flow.
    Name,
    /// Texts without commas: a list, or one text with commas between them.
    Texts,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number from the first to the second.
    Count(u64, u64),
    /// 0 to 1.
    Probability,
    /// A number above 0, up to 1024.
    Factor,
    /// true or false.
    Flag,
    /// Bytes, from 1 to this, with binary prefixes.
    Size(u64),
    /// The same, or 0.
    Amount(u64),
    /// Fibre, in metres.
    Distance,
    /// In picoseconds, up to an hour.
    Time,
    /// In bit/s.
    Rate,
    /// off, on, or thresholds.
    Ecn,
    /// Two ends of a link.
    Ends,
    /// A NIC: the name of a profile, a file, or a table.
    Nic,
    /// Keys of an accelerator.
    Accelerator,
}

/// A parsed value, in the unit of its kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Quantity {
    Whole(u64),
    Real(f64),
    Flag(bool),
    Text(String),
}

impl ValueKind {
    /// Suffix of a key of this kind whose value is in base units.
    pub fn unit(self) -> &'static str {
        match self {
            ValueKind::Distance => "_m",
            ValueKind::Time => "_ns",
            ValueKind::Rate => "_bps",
            ValueKind::Size(_) | ValueKind::Amount(_) => "_bytes",
            _ => "",
        }
    }

    /// Parses a value, or returns a description of valid ones.
    pub fn read(self, value: &Value) -> Result<Quantity, String> {
        let found = match (self, value) {
            (ValueKind::Text, Value::Text(text)) => Some(Quantity::Text(text.clone())),
            (ValueKind::Texts, Value::Text(text)) => Some(Quantity::Text(text.clone())),
            (ValueKind::Texts, Value::List(items)) => texts(items),
            (ValueKind::Name, Value::Text(text)) => return name(text),
            (ValueKind::Choice(words), Value::Text(text)) => return choice(words, text),
            (ValueKind::Count(..), Value::Whole(number)) => Some(Quantity::Whole(*number)),
            (ValueKind::Probability, Value::Real(number)) => Some(Quantity::Real(*number)),
            (ValueKind::Probability, Value::Whole(number)) => Some(Quantity::Real(*number as f64)),
            (ValueKind::Probability, Value::Text(text)) => {
                probability(text).ok().map(Quantity::Real)
            }
            (ValueKind::Factor, Value::Real(number)) => Some(Quantity::Real(*number)),
            (ValueKind::Factor, Value::Whole(number)) => Some(Quantity::Real(*number as f64)),
            (ValueKind::Flag, Value::Flag(flag)) => Some(Quantity::Flag(*flag)),
            (ValueKind::Ecn, Value::Text(text)) => {
                return ecn(text).map(|_| Quantity::Text(text.clone()));
            }
            (ValueKind::Size(_) | ValueKind::Amount(_) | ValueKind::Rate, Value::Whole(number)) => {
                Some(Quantity::Whole(*number))
            }
            (ValueKind::Distance | ValueKind::Time, Value::Whole(0)) => Some(Quantity::Whole(0)),
            (ValueKind::Size(_) | ValueKind::Amount(_), Value::Text(text)) => {
                taken(text, size_bytes(text))?
            }
            (ValueKind::Distance, Value::Text(text)) => taken(text, distance_m(text))?,
            (ValueKind::Time, Value::Text(text)) => taken(text, text.parse().map(Duration::as_ps))?,
            (ValueKind::Rate, Value::Text(text)) => match text.trim() {
                "0" => Some(Quantity::Whole(0)),
                text => text.parse::<BitRate>().ok().map(|rate| Quantity::Whole(rate.as_bps())),
            },
            _ => None,
        };
        let found = found.ok_or_else(|| format!("{} is not {}", value.kind(), self.wanted()))?;
        match self.is_within(&found) {
            true => Ok(found),
            false => Err(format!("{} is out of range: it takes {}", value.kind(), self.wanted())),
        }
    }

    fn is_within(self, found: &Quantity) -> bool {
        match (self, found) {
            (ValueKind::Count(least, most), Quantity::Whole(number)) => {
                (least..=most).contains(number)
            }
            (ValueKind::Probability, Quantity::Real(number)) => (0.0..=1.0).contains(number),
            (ValueKind::Factor, Quantity::Real(number)) => *number > 0.0 && *number <= 1024.0,
            (ValueKind::Size(most), Quantity::Whole(number)) => (1..=most).contains(number),
            (ValueKind::Amount(most), Quantity::Whole(number)) => *number <= most,
            (ValueKind::Rate, Quantity::Whole(number)) => {
                (1000..=1_000_000_000_000_000).contains(number)
            }
            _ => true,
        }
    }

    /// Description of valid values.
    fn wanted(self) -> String {
        match self {
            ValueKind::Text => "text in quotes".into(),
            ValueKind::Texts => "a list of texts, as in [\"one\", \"other\"]".into(),
            ValueKind::Name => "a name in quotes".into(),
            ValueKind::Choice(words) => format!("one of \"{}\"", words.join("\", \"")),
            ValueKind::Count(least, u64::MAX) => format!("a whole number from {least}"),
            ValueKind::Count(least, most) => format!("a whole number from {least} to {most}"),
            ValueKind::Probability => "a probability from 0 to 1, as in 1e-5 or \"0.1%\"".into(),
            ValueKind::Factor => "a number above 0, up to 1024".into(),
            ValueKind::Flag => "true or false".into(),
            ValueKind::Size(most) => {
                format!("bytes from 1 to {}, as in 4096, \"64K\" or \"4M\"", bytes(most))
            }
            ValueKind::Amount(most) => {
                format!("bytes from 0 to {}, as in 0, \"64M\" or \"4G\"", bytes(most))
            }
            ValueKind::Distance => "a length with km or m, as in \"380km\" or \"500m\"".into(),
            ValueKind::Time => "a time with ns, us, ms or s, as in \"3.81ms\" or \"250us\"".into(),
            ValueKind::Rate => {
                "a rate from 1 kbit/s to 1 Pbit/s, as in \"100G\" or \"400M\"".into()
            }
            ValueKind::Ecn => {
                "\"off\", \"on\" or thresholds KMIN:KMAX[:PMAX], as in \"1M:4M:0.1\"".into()
            }
            ValueKind::Ends => "two ends, as in [\"a\", \"near.lan\"]".into(),
            ValueKind::Nic => "a profile's name, a file's name ending in .toml, or a table".into(),
            ValueKind::Accelerator => "a table".into(),
        }
    }
}

fn bytes(count: u64) -> String {
    match count {
        count if count >= 1 << 30 => format!("{} GiB", count >> 30),
        count => format!("{count}"),
    }
}

/// Joins texts with commas.
fn texts(items: &[Node]) -> Option<Quantity> {
    let text = |item: &Node| match &item.value {
        Value::Text(text) if !text.contains(',') => Some(text.clone()),
        _ => None,
    };
    let all: Option<Vec<String>> = items.iter().map(text).collect();
    all.map(|all| Quantity::Text(all.join(",")))
}

fn choice(words: &[&str], text: &str) -> Result<Quantity, String> {
    match words.contains(&text) {
        true => Ok(Quantity::Text(text.to_owned())),
        false => Err(format!(
            "\"{text}\" is {}",
            super::schema::suggest(text, words.iter().copied(), "none of")
        )),
    }
}

fn name(text: &str) -> Result<Quantity, String> {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if (1..=64).contains(&text.len()) && text.chars().all(is_fit) {
        Ok(Quantity::Text(text.to_owned()))
    } else {
        Err(format!("\"{text}\" is no name: 1 to 64 letters, digits, - and _ make one"))
    }
}

/// Unwraps a parsed quantity. An error for text that is no quantity is left to the caller; one for
/// too large a value is returned.
fn taken(text: &str, read: Result<u64, QuantityError>) -> Result<Option<Quantity>, String> {
    match read {
        Ok(number) => Ok(Some(Quantity::Whole(number))),
        Err(error) if error.is_too_large() => Err(format!("\"{text}\" is {error}")),
        Err(_) => Ok(None),
    }
}

/// Values of `ecn`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ecn {
    Off,
    /// Default thresholds for the queue's length.
    OfQueue,
    /// Kmin and Kmax in bytes, Pmax.
    Of(u64, u64, f64),
}

/// Parses `ecn`.
pub(super) fn ecn(text: &str) -> Result<Ecn, String> {
    let wrong = || format!("\"{text}\" is not {}", ValueKind::Ecn.wanted());
    match text {
        "off" => return Ok(Ecn::Off),
        "on" => return Ok(Ecn::OfQueue),
        _ => {}
    }
    let mut parts = text.split(':');
    let mut threshold = || parts.next().and_then(|part| size_bytes(part).ok()).ok_or_else(wrong);
    let (kmin, kmax) = (threshold()?, threshold()?);
    let pmax = match parts.next() {
        Some(part) => probability(part).map_err(|_| wrong())?,
        None => 0.1,
    };
    match parts.next() {
        None if kmin <= kmax => Ok(Ecn::Of(kmin, kmax, pmax)),
        None => Err(format!("\"{text}\" has a Kmin above its Kmax")),
        Some(_) => Err(wrong()),
    }
}
