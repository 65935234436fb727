//! Scripted, deterministic changes of a link over time.

use crate::config::{Cut, LinkConfig, LinkError};
use crate::text::{TextError, Words, rate_text, time_text, times};
use longhaul_units::{BitRate, Duration, Instant, distance_m, probability};
use std::fmt;
use std::str::FromStr;

/// Most changes of one link.
pub const CHANGES_MAX: usize = 256;

/// A change of a link's properties from a given time on.
///
/// It applies to frames that enter the queue from then on; queued frames keep the rate that they
/// found. No frame overtakes another: if the delay becomes shorter, frames that enter before the
/// last frame in flight has arrived wait for it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Change {
    /// Start time, on the clock that drives the link.
    pub at: Instant,
    /// Length, after which the previous setting applies again. `None`: permanent. Among concurrent
    /// changes of one kind, the one that began last applies.
    pub lasts: Option<Duration>,
    /// The setting.
    pub to: Setting,
}

/// A property, with its new value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Setting {
    /// The fibre is cut: frames sent are lost, frames sent before arrive.
    Cut,
    /// Probability that a frame is lost, 0 to 1.
    Loss(f64),
    /// Rate in bits on the wire, of a link that has one.
    Rate(BitRate),
    /// One-way delay.
    Delay(Duration),
}

impl Change {
    /// True if it applies at `now`.
    fn is_on(&self, now: Instant) -> bool {
        now >= self.at && self.end().is_none_or(|end| now < end)
    }

    fn end(&self) -> Option<Instant> {
        self.lasts.map(|lasts| self.at + lasts)
    }

    /// The change as a cut, if it is one.
    pub(crate) fn cut(&self) -> Option<Cut> {
        let lasts = self.lasts.unwrap_or(Duration::from_ps(u64::MAX));
        matches!(self.to, Setting::Cut).then_some(Cut { at: self.at, lasts, every: None })
    }

    pub(crate) fn check(&self, config: &LinkConfig) -> Result<(), LinkError> {
        let fault = |why| Err(LinkError::Change { change: *self, why });
        if self.lasts == Some(Duration::ZERO) {
            return fault("it lasts no time");
        }
        match self.to {
            Setting::Loss(loss) if !(0.0..=1.0).contains(&loss) => fault("a loss goes from 0 to 1"),
            Setting::Loss(loss) if config.bursts.is_some_and(|bursts| loss > bursts.mean_max()) => {
                fault("bursts of that length cannot make such a loss")
            }
            Setting::Rate(_) if config.rate.is_none() => {
                fault("the link has no rate that could change")
            }
            _ => Ok(()),
        }
    }
}

/// Properties of a link between two changes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Conditions {
    pub loss: f64,
    pub rate: Option<BitRate>,
    pub delay: Duration,
}

impl Conditions {
    pub fn of(config: &LinkConfig) -> Self {
        Conditions { loss: config.loss, rate: config.rate, delay: config.delay }
    }
}

/// Properties of a link by start time.
pub(crate) struct Timeline {
    steps: Vec<(Instant, Conditions)>,
    next: usize,
}

impl Timeline {
    pub fn new(config: &LinkConfig) -> Self {
        let changes = || config.changes.iter().filter(|change| change.cut().is_none());
        let mut moments: Vec<Instant> =
            changes().flat_map(|change| std::iter::once(change.at).chain(change.end())).collect();
        moments.sort_unstable();
        moments.dedup();
        let at = |moment: Instant| {
            let mut on: Vec<&Change> = changes().filter(|change| change.is_on(moment)).collect();
            on.sort_by_key(|change| change.at);
            on.iter().fold(Conditions::of(config), |conditions, change| match change.to {
                Setting::Cut => conditions,
                Setting::Loss(loss) => Conditions { loss, ..conditions },
                Setting::Rate(rate) => Conditions { rate: Some(rate), ..conditions },
                Setting::Delay(delay) => Conditions { delay, ..conditions },
            })
        };
        Timeline {
            steps: moments.into_iter().map(|moment| (moment, at(moment))).collect(),
            next: 0,
        }
    }

    /// Time of the next change.
    pub fn next_at(&self) -> Option<Instant> {
        self.steps.get(self.next).map(|(at, _)| *at)
    }

    /// Returns the properties at `now` if they have changed.
    pub fn advance(&mut self, now: Instant) -> Option<Conditions> {
        let mut last = None;
        while let Some((_, conditions)) = self.steps.get(self.next).filter(|(at, _)| *at <= now) {
            last = Some(*conditions);
            self.next += 1;
        }
        last
    }
}

const EXAMPLES: &str =
    "write it as in '10s cut 50ms', '5s-20s loss 1e-3', '30s rate 1G' or '60s delay 20ms'";

impl FromStr for Change {
    type Err = TextError;

    /// Parses a change such as `5s-20s loss 1e-3`; times count from the start of the clock that
    /// drives the link.
    ///
    /// # Errors
    /// [`TextError`] with the position.
    fn from_str(text: &str) -> Result<Self, TextError> {
        let mut words = Words::new(text, 0..text.len());
        let when = words.expect(EXAMPLES)?;
        let Some(span) = times(when.text) else {
            return Err(words.error(when, format!("not a time: {EXAMPLES}")));
        };
        let is_span = when.text.contains('-');
        if is_span && span.end() <= span.start() {
            return Err(words.error(when, "it ends before it begins"));
        }
        let mut lasts = is_span.then(|| *span.end() - *span.start());
        let what = words.expect(EXAMPLES)?;
        let to = match what.text {
            "cut" => {
                if let Some(word) = words.next() {
                    let time =
                        word.text.parse::<Duration>().ok().filter(|time| *time > Duration::ZERO);
                    if time.is_none() || is_span {
                        let why = "behind 'cut' stands for how long, unless that was said before";
                        return Err(words.error(word, why));
                    }
                    lasts = time;
                }
                Setting::Cut
            }
            "loss" => {
                let word = words.expect("which loss? A probability, as in 1e-3 or 0.1%")?;
                let loss = probability(word.text);
                Setting::Loss(
                    loss.map_err(|_| words.error(word, "a probability, as in 1e-3 or 0.1%"))?,
                )
            }
            "rate" => Setting::Rate(words.value("which rate? As in 10G or 400M")?),
            "delay" => Setting::Delay(words.value("how long? As in 20ms")?),
            "distance" => {
                let word = words.expect("how far? As in 1000km")?;
                let metres =
                    distance_m(word.text).map_err(|error| words.error(word, error.to_string()))?;
                Setting::Delay(Duration::of_fibre_m(metres))
            }
            _ => {
                return Err(words.error(what, "what changes is cut, loss, rate, delay or distance"));
            }
        };
        match words.next() {
            Some(word) => Err(words.error(word, format!("nothing follows here: {EXAMPLES}"))),
            None => Ok(Change { at: Instant::ZERO + *span.start(), lasts, to }),
        }
    }
}

impl fmt::Display for Change {
    /// Writes the text that [`Change::from_str`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&time_text(self.at.since(Instant::ZERO)))?;
        if let Some(end) = self.end() {
            write!(f, "-{}", time_text(end.since(Instant::ZERO)))?;
        }
        match self.to {
            Setting::Cut => f.write_str(" cut"),
            Setting::Loss(loss) => write!(f, " loss {loss}"),
            Setting::Rate(rate) => write!(f, " rate {}", rate_text(rate)),
            Setting::Delay(delay) => write!(f, " delay {}", time_text(delay)),
        }
    }
}
