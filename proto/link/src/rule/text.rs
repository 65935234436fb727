//! Rules as lines of text: `WHAT [CONDITION ...]: ACTION [QUALIFIER ...]`.

use super::{Action, FrameMatch, Occurrence, PacketKind, PacketKinds, Rule, Selection};
use crate::text::{TextError, Word, Words, time_text, times, whole, whole_range};
use longhaul_units::probability;
use longhaul_wire::Prefix;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

const ACTIONS: &str =
    "lose, mark, corrupt icrc, corrupt payload, duplicate, delay TIME or reorder TIME";
const CONDITIONS: &str = "from, opcode, qpn, psn, source, destination, port or dscp";
const QUALIFIERS: &str =
    "a probability as in 1% or 1e-3, bursts N, first N, every N, number N, at-most N or once";

/// Most digits of a percentage behind the point.
const PERCENT_DIGITS_MAX: usize = 9;

fn kinds() -> String {
    PacketKind::ALL.map(PacketKind::name).join(", ")
}

/// Position of the colon before the action: a colon within an IPv6 address is not followed by a
/// space.
fn colon(text: &str) -> Option<usize> {
    text.match_indices(':')
        .map(|(at, _)| at)
        .find(|at| text[at + 1..].starts_with(char::is_whitespace) || at + 1 == text.len())
}

impl FromStr for Rule {
    type Err = TextError;

    /// Parses a rule such as `read-response from a: lose 1%`.
    ///
    /// # Errors
    /// [`TextError`] with the position.
    fn from_str(text: &str) -> Result<Self, TextError> {
        let all = Words::new(text, 0..text.len());
        let Some(colon) = colon(text) else {
            let why = "no ': ' between what is selected and what is done to it: write it as in \
                       'read-response from a: lose 1%'";
            return Err(all.error_at(text.len(), why));
        };
        let selection = selection(&mut Words::new(text, 0..colon))?;
        let mut words = Words::new(text, colon + 1..text.len());
        let mut rule = Rule::new(selection, action(&mut words)?);
        while let Some(word) = words.next() {
            qualify(&mut rule, word, &mut words)?;
        }
        match rule.fault() {
            Some(why) => Err(all.error_at(0, why)),
            None => Ok(rule),
        }
    }
}

fn selection(words: &mut Words<'_>) -> Result<Selection, TextError> {
    let mut what = None;
    let mut selection = Selection::of(FrameMatch::Any);
    while let Some(word) = words.next() {
        if let Some(kind) = PacketKind::ALL.into_iter().find(|kind| kind.name() == word.text) {
            let kinds = match what {
                None => PacketKinds::NONE,
                Some(FrameMatch::Roce(kinds)) if kinds != PacketKinds::ALL => kinds,
                Some(_) => return Err(words.error(word, "another kind of frame was named before")),
            };
            what = Some(FrameMatch::Roce(kinds.and(kind)));
            continue;
        }
        let named = match word.text {
            "any" => Some(FrameMatch::Any),
            "roce" => Some(FrameMatch::Roce(PacketKinds::ALL)),
            "not-roce" => Some(FrameMatch::NotRoce),
            _ => None,
        };
        match named {
            Some(_) if what.is_some() => {
                return Err(words.error(word, "another kind of frame was named before"));
            }
            Some(_) => what = named,
            None => condition(&mut selection, word, words)?,
        }
    }
    selection.what = match what {
        Some(what) => what,
        None if selection.has_packet_conditions() => FrameMatch::Roce(PacketKinds::ALL),
        None => {
            let why =
                format!("which frames? Say any, roce, not-roce, or what packets are: {}", kinds());
            return Err(words.error_at(0, why));
        }
    };
    Ok(selection)
}

fn condition(
    selection: &mut Selection,
    word: Word<'_>,
    words: &mut Words<'_>,
) -> Result<(), TextError> {
    match word.text {
        "from" => {
            let side = words.expect("from which side? Say a or b")?;
            selection.from = Some(match side.text {
                "a" => 0,
                "b" => 1,
                _ => return Err(words.error(side, "sides are a and b")),
            });
        }
        "opcode" => {
            selection.opcodes = Some(range(words, u8::MAX.into(), "opcodes from 0 to 255")?)
        }
        "qpn" => selection.qpns = Some(range(words, 0xff_ffff, "QPNs up to 0xffffff")?),
        "psn" => selection.psns = Some(range(words, 0xff_ffff, "PSNs up to 0xffffff")?),
        "port" => {
            selection.ports = Some(range(words, u16::MAX.into(), "UDP source ports up to 65535")?)
        }
        "dscp" => selection.dscps = Some(range(words, 63, "DSCPs from 0 to 63")?),
        "source" => selection.source = Some(prefix(words)?),
        "destination" => selection.destination = Some(prefix(words)?),
        _ => {
            let why = format!(
                "neither a kind of frame (any, roce, not-roce, {}) nor a condition ({CONDITIONS})",
                kinds()
            );
            return Err(words.error(word, why));
        }
    }
    Ok(())
}

fn range<T: TryFrom<u64>>(
    words: &mut Words<'_>,
    max: u64,
    what: &str,
) -> Result<RangeInclusive<T>, TextError> {
    let why = format!("{what}, one or two with a dash between them, as in 0x17 or 100-200");
    let word = words.expect(&why)?;
    let numbers = whole_range(word.text).filter(|r| *r.start() <= max && *r.end() <= max);
    let both =
        numbers.and_then(|r| Some(T::try_from(*r.start()).ok()?..=T::try_from(*r.end()).ok()?));
    both.ok_or_else(|| words.error(word, why))
}

fn prefix(words: &mut Words<'_>) -> Result<Prefix, TextError> {
    let word = words.expect("an address, or its first bits as in 10.1.0.0/16")?;
    word.text.parse::<Prefix>().map_err(|error| words.error(word, error.why))
}

fn action(words: &mut Words<'_>) -> Result<Action, TextError> {
    let word = words.expect(&format!("done what to? Say {ACTIONS}"))?;
    let time = |words: &mut Words<'_>| {
        let why = "how long? A time or a range of times, as in 5ms or 0-100us";
        let word = words.expect(why)?;
        times(word.text).ok_or_else(|| words.error(word, why))
    };
    Ok(match word.text {
        "lose" => Action::Lose,
        "mark" => Action::Mark,
        "duplicate" => Action::Duplicate,
        "delay" => Action::Delay(time(words)?),
        "reorder" => Action::Reorder(time(words)?),
        "corrupt" => {
            let part = words.expect("corrupt what? Say icrc or payload")?;
            match part.text {
                "icrc" => Action::CorruptIcrc,
                "payload" => Action::CorruptPayload,
                _ => return Err(words.error(part, "what is corrupted is icrc or payload")),
            }
        }
        _ => {
            return Err(words.error(word, format!("nothing that is done to frames: say {ACTIONS}")));
        }
    })
}

fn qualify(rule: &mut Rule, word: Word<'_>, words: &mut Words<'_>) -> Result<(), TextError> {
    let count = |words: &mut Words<'_>| {
        let why = "a number of frames from 1 on";
        let word = words.expect(why)?;
        whole(word.text).filter(|count| *count > 0).ok_or_else(|| words.error(word, why))
    };
    let occurrence = match word.text {
        "first" => Occurrence::First(count(words)?),
        "every" => Occurrence::Every(count(words)?),
        "number" => Occurrence::Number(count(words)?),
        "at-most" => {
            rule.at_most = Some(count(words)?);
            return Ok(());
        }
        "once" => {
            rule.at_most = Some(1);
            return Ok(());
        }
        "bursts" => {
            rule.burst_frames = Some(words.value("the mean length of bursts, in frames, as in 8")?);
            return Ok(());
        }
        text => {
            let Ok(part) = probability(text) else {
                return Err(words.error(word, format!("say {QUALIFIERS}")));
            };
            rule.probability = part;
            return Ok(());
        }
    };
    if rule.occurrence != Occurrence::Each {
        return Err(words.error(word, "first, every and number exclude each other"));
    }
    rule.occurrence = occurrence;
    Ok(())
}

/// Formats a probability: as a percentage above 0.1 %, such as `1%`, otherwise as `1e-3`.
fn probability_text(part: f64) -> String {
    let percent = |digits| format!("{:.digits$}%", part * 100.0);
    let is_it = |text: &String| probability(text) == Ok(part);
    let percent = (0..=PERCENT_DIGITS_MAX).map(percent).find(is_it);
    percent.filter(|_| part == 0.0 || part > 1e-3).unwrap_or_else(|| format!("{part:e}"))
}

impl fmt::Display for Rule {
    /// Writes the text that [`Rule::from_str`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.selection, self.action)?;
        if self.probability != 1.0 {
            write!(f, " {}", probability_text(self.probability))?;
        }
        if let Some(frames) = self.burst_frames {
            write!(f, " bursts {frames}")?;
        }
        match self.occurrence {
            Occurrence::Each => {}
            Occurrence::First(count) => write!(f, " first {count}")?,
            Occurrence::Every(count) => write!(f, " every {count}")?,
            Occurrence::Number(number) => write!(f, " number {number}")?,
        }
        match self.at_most {
            None => Ok(()),
            Some(1) => f.write_str(" once"),
            Some(count) => write!(f, " at-most {count}"),
        }
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            FrameMatch::Any => f.write_str("any")?,
            FrameMatch::NotRoce => f.write_str("not-roce")?,
            FrameMatch::Roce(PacketKinds::ALL) => f.write_str("roce")?,
            FrameMatch::Roce(kinds) => {
                let named = PacketKind::ALL.into_iter().filter(|kind| kinds.contains(*kind));
                f.write_str(&named.map(PacketKind::name).collect::<Vec<_>>().join(", "))?;
            }
        }
        if let Some(from) = self.from {
            write!(f, " from {}", if from == 0 { "a" } else { "b" })?;
        }
        if let Some(opcodes) = &self.opcodes {
            write!(f, " opcode {:#x}-{:#x}", opcodes.start(), opcodes.end())?;
        }
        for (name, range) in [("qpn", &self.qpns), ("psn", &self.psns)] {
            match range {
                Some(range) if range.start() == range.end() => {
                    write!(f, " {name} {:#x}", range.start())?
                }
                Some(range) => write!(f, " {name} {:#x}-{:#x}", range.start(), range.end())?,
                None => {}
            }
        }
        for (name, prefix) in [("source", self.source), ("destination", self.destination)] {
            if let Some(prefix) = prefix {
                write!(f, " {name} {prefix}")?;
            }
        }
        if let Some(ports) = &self.ports {
            write!(f, " port {}-{}", ports.start(), ports.end())?;
        }
        match &self.dscps {
            Some(dscps) => write!(f, " dscp {}-{}", dscps.start(), dscps.end()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, times) = match self {
            Action::Lose => return f.write_str("lose"),
            Action::Mark => return f.write_str("mark"),
            Action::CorruptIcrc => return f.write_str("corrupt icrc"),
            Action::CorruptPayload => return f.write_str("corrupt payload"),
            Action::Duplicate => return f.write_str("duplicate"),
            Action::Delay(times) => ("delay", times),
            Action::Reorder(times) => ("reorder", times),
        };
        match times.start() == times.end() {
            true => write!(f, "{name} {}", time_text(*times.end())),
            false => write!(f, "{name} {}-{}", time_text(*times.start()), time_text(*times.end())),
        }
    }
}
