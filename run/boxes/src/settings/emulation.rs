//! Settings of an emulated fibre between two ports, and the link that they configure.

use super::SettingsError;
use super::table::settings;
use crate::cores::{Cores, cores_written};
use crate::element::Element;
use crate::fibre::{Ecn, Fibre, as_texts, bursts, cuts};
use crate::plan::{BoxKind, Settings, by, written};
use crate::port::PortName;
use crate::quantity::{Distance, Size, memory, probability};
use longhaul_host::Spread;
use longhaul_host::placement::CoreList;
use longhaul_link::{Change, Impairments, Link, Rule};
use longhaul_units::{BitRate, Duration as Span};
use serde::{Deserialize, Deserializer};
use std::convert::Infallible;
use std::num::NonZeroUsize;

settings! {
/// Settings of a fibre, all optional. Names and meanings are those of `longhaul lab up`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
#[serde(default)]
pub struct Emulation {
    /// Length of the fibre, at 5 µs per km one way [default: 0km]
    #[arg(long)]
    #[serde(deserialize_with = "written")]
    distance: Option<Distance> => Restart, given with delay;
    /// One-way delay of the fibre, instead of a length
    #[arg(long, value_name = "TIME", conflicts_with = "distance")]
    #[serde(deserialize_with = "written")]
    delay: Option<Span> => Restart, given with distance;
    /// Rate of the fibre [default: 10G]
    #[arg(long)]
    #[serde(deserialize_with = "written")]
    rate: Option<BitRate> => Restart;
    /// Probability that the fibre loses a frame [default: 0]
    #[arg(long, value_name = "PROBABILITY", value_parser = probability)]
    #[serde(deserialize_with = "probability_written")]
    loss: Option<f64> => Restart;
    /// Mean length of loss bursts, in frames (Gilbert-Elliott model); --loss is the overall mean
    /// [default: losses are independent]
    #[arg(long, value_name = "FRAMES")]
    loss_burst: Option<f64> => Restart;
    /// Probability that a frame in a burst is lost [default: 1]
    #[arg(long, value_name = "PROBABILITY", value_parser = probability)]
    #[serde(deserialize_with = "probability_written")]
    loss_in_burst: Option<f64> => Restart;
    /// Duration of periodic cuts; frames sent during a cut are lost
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "written")]
    cut_for: Option<Span> => Restart;
    /// Time from the start of one cut to the next [default: 10s]
    #[arg(long, value_name = "TIME", requires = "cut_for")]
    #[serde(deserialize_with = "written")]
    cut_every: Option<Span> => Restart;
    /// Probability that a frame is delayed, so that later frames overtake it [default: 0]
    #[arg(long, value_name = "PROBABILITY", value_parser = probability)]
    #[serde(deserialize_with = "probability_written")]
    reorder: Option<f64> => Restart;
    /// Delay of such a frame [default: 1ms]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "written")]
    reorder_delay: Option<Span> => Restart;
    /// Probability that the fibre duplicates a frame [default: 0]
    #[arg(long, value_name = "PROBABILITY", value_parser = probability)]
    #[serde(deserialize_with = "probability_written")]
    duplicate: Option<f64> => Restart;
    /// Probability that a bit of a frame is flipped [default: 0]
    #[arg(long, value_name = "PROBABILITY", value_parser = probability)]
    #[serde(deserialize_with = "probability_written")]
    corrupt: Option<f64> => Restart;
    /// Apply an action to selected frames only: 'WHAT [CONDITION ...]: ACTION [HOW OFTEN]', as in
    /// 'read-response from a: lose 1%'. May be repeated; docs/emulator.md has the syntax
    #[arg(long, value_name = "RULE")]
    #[serde(deserialize_with = "as_texts::deserialize")]
    rule: Vec<Rule> => Restart;
    /// Change the fibre at a time after the start: '10s cut 50ms', '5s-20s loss 1e-3', '30s rate
    /// 1G', '60s delay 20ms'. May be repeated
    #[arg(long, value_name = "CHANGE")]
    #[serde(deserialize_with = "as_texts::deserialize")]
    at: Vec<Change> => Restart;
    /// Queue before the fibre, per direction; frames beyond it are dropped [default: 16M]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "written")]
    queue: Option<Size> => Restart;
    /// Mark ECN-capable packets by queue length: never up to Kmin, always above Kmax, in between
    /// with a probability that rises to Pmax (0.1 unless given). Without a value, Kmin is 1/16 of
    /// the queue and Kmax 1/4 [default: off]
    #[arg(long, num_args = 0..=1, default_missing_value = "on", value_name = "KMIN:KMAX[:PMAX]")]
    #[serde(deserialize_with = "written")]
    ecn: Option<Ecn> => Restart;
    /// Memory for frames in flight [default: 4G]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    #[serde(deserialize_with = "memory_written")]
    memory: Option<Size> => Restart;
    /// Busy-poll, so that frames leave on time; each pair of ports occupies one processor
    #[arg(long)]
    precise: bool => Restart;
    /// Seed of all random decisions [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64> => Restart;
    /// Cores that share the ports: a number, as 2, or the processors to run on, as 4-7 or 0,2. With
    /// two, each core serves one direction [default: 1]
    #[arg(long, value_name = "LIST")]
    #[serde(deserialize_with = "cores_written")]
    cores: Option<CoreList> => Restart;
    /// NUMA node whose processors the cores run on, if --cores is a number [default: the node of
    /// the first port's device, with several cores]
    #[arg(long, value_name = "NODE")]
    numa: Option<u32> => Restart;
}
}

fn memory_written<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Size>, D::Error> {
    by(from, memory)
}

fn probability_written<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    /// A number, or text.
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a probability: a number, or text as in '1%'")]
    enum Written {
        Number(f64),
        Text(String),
    }
    let text = match Written::deserialize(from)? {
        Written::Number(number) => number.to_string(),
        Written::Text(text) => text,
    };
    probability(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Settings for Emulation {
    fn cores(&self) -> Cores {
        Cores::new(&self.cores, self.numa)
    }
}

impl BoxKind for Emulation {
    type Element = Link;
    const COMMAND: &'static str = "emulate";
    // Rate and order apply to a whole direction, which two cores cannot share.
    const SPREAD: Spread = Spread::BySide;
    const STAMPS: bool = true;

    fn allows_cores(&self, count: NonZeroUsize) -> Result<(), SettingsError> {
        if count.get() > Link::SIDES.len() {
            return Err(SettingsError::MoreCoresThanDirections(count));
        }
        Ok(())
    }

    fn build(&self, _behind: &[PortName]) -> Result<Vec<Link>, SettingsError> {
        (0..self.cores().count().get()).map(|_| self.link()).collect()
    }

    fn summary(&self) -> Option<String> {
        self.fibre().ok().map(|fibre| fibre.summary())
    }

    fn is_precise(&self) -> bool {
        self.precise
    }

    fn change(&self, _behind: &[PortName]) -> Result<Infallible, SettingsError> {
        Err(SettingsError::FixedFibre)
    }
}

impl Emulation {
    /// The fibre that these settings describe.
    ///
    /// # Errors
    /// If the settings contradict each other.
    pub fn fibre(&self) -> Result<Fibre, SettingsError> {
        let delay = match (self.delay, self.distance) {
            (Some(_), Some(_)) => {
                return Err(SettingsError::DelayAndDistance);
            }
            (Some(delay), None) => delay,
            (None, distance) => Span::of_fibre_m(distance.map_or(0, Distance::metres)),
        };
        if self.loss_burst.is_some() && self.loss.is_none() {
            return Err(SettingsError::BurstsWithoutLoss);
        }
        if self.loss_in_burst.is_some() && self.loss_burst.is_none() {
            return Err(SettingsError::InBurstWithoutBursts);
        }
        if self.reorder_delay.is_some() && self.reorder.is_none() {
            return Err(SettingsError::ReorderDelayWithoutReorder);
        }
        Ok(Fibre {
            delay,
            rate: self.rate.unwrap_or(Fibre::RATE),
            loss: self.loss.unwrap_or(0.0),
            bursts: bursts(self.loss_burst, self.loss_in_burst),
            cut: cuts(self.cut_for, self.cut_every),
            impairments: Impairments {
                late: self.reorder.unwrap_or(0.0),
                late_by: self
                    .reorder
                    .map_or(Span::ZERO, |_| self.reorder_delay.unwrap_or(Impairments::LATE_BY)),
                duplication: self.duplicate.unwrap_or(0.0),
                corruption: self.corrupt.unwrap_or(0.0),
            },
            rules: self.rule.clone(),
            changes: self.at.clone(),
            queue: self.queue.unwrap_or(Fibre::QUEUE),
            ecn: self.ecn.unwrap_or(Ecn::Off),
            memory: self.memory.unwrap_or(Fibre::MEMORY),
            seed: self.seed.unwrap_or(1),
        })
    }

    /// The emulated fibre.
    ///
    /// # Errors
    /// If the settings contradict each other, or the memory is too small.
    pub fn link(&self) -> Result<Link, SettingsError> {
        Ok(self.fibre()?.link()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Given, Process, plan};
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        settings: Emulation,
    }

    const SIDES: [&str; 2] = Link::SIDES;

    fn settings(arguments: &str) -> Emulation {
        settings_of(arguments.split_whitespace())
    }

    fn settings_of<'a>(arguments: impl Iterator<Item = &'a str>) -> Emulation {
        let arguments = std::iter::once("emulate").chain(arguments);
        Cli::try_parse_from(arguments).unwrap_or_else(|e| panic!("{e}")).settings
    }

    const LISTS: [&str; 8] = [
        "--rule",
        "read-response from a: lose 1%",
        "--rule",
        "qpn 0x17: mark",
        "--at",
        "10s cut 50ms",
        "--at",
        "5s-20s loss 1e-3",
    ];

    #[test]
    fn a_pairs_rules_stand_for_the_defaults() {
        let rules = |text: &str| toml::from_str::<Emulation>(text).unwrap();
        let (pair, defaults) =
            (rules("rule = ['any: lose']"), rules("rule = ['cm: lose', 'ack: lose']"));
        assert_eq!(pair.over(&defaults).rule, pair.rule);
        assert_eq!(settings("").over(&defaults).rule, defaults.rule);
    }

    #[test]
    fn the_start_says_how_long_the_memory_reaches() {
        let text = settings("--distance 1000km --memory 1G").summary().unwrap();
        assert!(
            text.starts_with("5 ms one way at 10 Gbit/s; 1 GiB of memory suffices for a delay of "),
            "{text}"
        );
    }

    #[test]
    fn a_loss_is_a_number_or_percent() {
        let loss = |settings: Emulation| settings.fibre().unwrap().loss;
        for text in ["1e-2", "1%"] {
            assert_eq!(loss(settings(&format!("--loss {text}"))), 0.01, "{text}");
        }
        for text in ["loss = 1e-2", "loss = '1%'", "loss = '1e-2'"] {
            assert_eq!(loss(toml::from_str(text).unwrap()), 0.01, "{text}");
        }
        let refusal = toml::from_str::<Emulation>("loss = '101%'").unwrap_err().to_string();
        assert!(refusal.contains("from 0 to 1, as in 1e-4 or 0.01%"), "{refusal}");
    }

    #[test]
    fn a_delay_stands_for_a_distance() {
        let delay = |settings: Emulation| settings.fibre().map(|fibre| fibre.delay);
        assert_eq!(delay(settings("--delay 5ms")).unwrap(), Span::from_ms(5));
        let (km, ms) = (settings("--distance 100km"), settings("--delay 5ms"));
        assert_eq!(delay(km.over(&ms)).unwrap(), Span::from_us(500));
        assert_eq!(delay(ms.over(&km)).unwrap(), Span::from_ms(5));
        assert!(
            toml::from_str::<Emulation>("delay = '5ms'\ndistance = '1km'")
                .unwrap()
                .fibre()
                .is_err()
        );
    }

    #[test]
    fn a_delay_of_reordered_frames_needs_their_probability() {
        let refused = SettingsError::ReorderDelayWithoutReorder.to_string();
        let refusal = |text| settings(text).fibre().err().map(|e| e.to_string());
        assert_eq!(refusal("--reorder-delay 1ms"), Some(refused));
        assert_eq!(refusal("--reorder-delay 1ms --reorder 1e-3"), None);
    }

    #[test]
    fn a_delay_that_the_memory_is_too_small_for_is_refused_with_the_longest() {
        let refusal = settings("--distance 1000km --memory 16M").link().err().unwrap().to_string();
        assert!(
            refusal.contains("lossless up to") && refusal.contains("give at least"),
            "{refusal}"
        );
    }

    #[test]
    fn the_example_file_is_read() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/examples/emulate.toml");
        let process = Process { config: Some(file.into()), ..Process::default() };
        let plan = plan("emulate", SIDES, Given::default(), &process, &settings("")).unwrap();
        let [long, lossy] = &plan.pairs[..] else { panic!("{plan:?}") };
        let shared = "--rate 10G --queue 16M --memory 4G";
        assert_eq!(long.settings, settings(&format!("{shared} --distance 1000km")));
        assert_eq!(lossy.settings, settings(&format!("{shared} --delay 250us --loss 1e-5")));
        assert!(long.settings.link().is_ok() && lossy.settings.link().is_ok());
    }

    #[test]
    fn what_the_example_file_has_in_comments_is_read_too() {
        let text = include_str!("../../../../packaging/examples/emulate.toml");
        let is_key = |text: &str| text.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
        let lines = text
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|key| is_key(key)).unwrap_or(line));
        let file =
            std::env::temp_dir().join(format!("longhaul-emulate-{}.toml", std::process::id()));
        std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
        let process = Process { config: Some(file.clone()), ..Process::default() };
        let read = plan("emulate", SIDES, Given::default(), &process, &settings(""));
        std::fs::remove_file(&file).unwrap();
        let plan = read.unwrap();
        let chances = "--loss 1e-4 --loss-burst 8 --loss-in-burst 0.5 --cut-for 50ms --cut-every \
            10s --reorder 1e-3 --reorder-delay 1ms --duplicate 1e-4 --corrupt 1e-6 --seed 1";
        let rest = "--rate 10G --queue 16M --memory 4G --ecn 1M:4M:0.1 --distance 1000km";
        let words = format!("{chances} {rest}");
        assert_eq!(
            plan.pairs[0].settings,
            settings_of(
                words.split_whitespace().chain(["--precise", "--cores", "2,3"]).chain(LISTS)
            )
        );
        assert!(plan.pairs.iter().all(|pair| pair.settings.link().is_ok()));
        assert!(plan.pairs[1].pcaps.iter().all(Option::is_some) && plan.control.is_some());
    }

    #[test]
    fn a_rule_that_cannot_be_read_is_refused_with_its_place() {
        let refusal = Cli::try_parse_from(["emulate", "--rule", "write: loose 1%"])
            .err()
            .unwrap()
            .to_string();
        assert!(refusal.contains("character 8") && refusal.contains("say lose"), "{refusal}");
    }

    #[test]
    fn every_setting_can_be_written_in_a_file() {
        let file = "delay = '1ms'\nrate = '1G'\nloss = 0.25\nloss_burst = 4.0\nloss_in_burst = \
            0.75\ncut_for = '1s'\nqueue = '1M'\necn = 'on'\nmemory = '2G'\nseed = 3\n\
             reorder = 0.5\nreorder_delay = '2ms'\nduplicate = 0.125\ncorrupt = 1e-3\nprecise = \
             true\ncores = 2\nnuma = 1";
        let arguments = "--delay 1ms --rate 1G --loss 0.25 --loss-burst 4 --loss-in-burst 0.75 \
            --cut-for 1s --queue 1M --ecn --memory 2G --seed 3 --reorder 0.5 --reorder-delay 2ms \
            --duplicate 0.125 --corrupt 1e-3 --precise --cores 2 --numa 1";
        assert_eq!(toml::from_str::<Emulation>(file).unwrap(), settings(arguments));
        for wrong in [
            "rule = ['write: loose']",
            "at = ['10 cut']",
            "loss = 2",
            "loss_in_burst = 2",
            "reorder = -1",
            "duplicate = 1.5",
            "corrupt = 'x'",
            "reorder_delay = 5",
        ] {
            assert!(toml::from_str::<Emulation>(wrong).is_err(), "{wrong}");
        }
    }
}
