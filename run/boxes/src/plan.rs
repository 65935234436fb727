//! The plan of a box: pairs of ports with their settings, from the command line and a file.

mod file;

pub use file::{Fault, Section};

use crate::carrier::{Bypass, Carrier};
use crate::cores::Cores;
use crate::element::Element;
use crate::error::PathError;
use crate::journal::Form;
use crate::port::{Dpdk, PortName};
use crate::settings::SettingsError;
use crate::settings::table::{Changes, Key, Table};
use file::File;
use longhaul_host::Spread;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use thiserror::Error;

/// Why a plan cannot be made.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] PathError),
    /// The file is invalid.
    #[error("{}:{line}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The fault.
        message: String,
    },
    /// One side has more ports than the other.
    #[error(
        "--{} is given {} and --{} {}",
        .sides[0], times(.counts[0]), .sides[1], times(.counts[1])
    )]
    Unpaired {
        /// Names of the sides.
        sides: [String; 2],
        /// Number of ports per side.
        counts: [usize; 2],
    },
    /// The second side has several ports, which these settings do not allow.
    #[error("--{} is given once and --{} {}", .sides[0], .sides[1], times(*.count))]
    Several {
        /// Names of the sides.
        sides: [String; 2],
        /// Number of ports of the second side.
        count: usize,
        /// The reason.
        why: String,
    },
    /// A side has more recordings than ports.
    #[error("--pcap-{0} is given more often than --{0}")]
    PcapsLeft(String),
    /// There is no pair.
    #[error("no ports")]
    NoPorts {
        /// Names of the sides.
        sides: [String; 2],
    },
    /// The file has no pair, and neither has the command line.
    #[error("{} has no [[pair]]", path.display())]
    NoPairs {
        /// The file.
        path: PathBuf,
        /// Names of the sides.
        sides: [String; 2],
    },
    /// A port is in two pairs.
    #[error("port {0} is named twice")]
    PortTwice(PortName),
    /// Two pairs have the same name.
    #[error("two pairs are called '{0}'")]
    NameTwice(String),
    /// Two recordings have the same file.
    #[error("two recordings go to {}", .0.display())]
    PcapTwice(PathBuf),
}

fn times(count: usize) -> String {
    match count {
        0 => "not at all".to_string(),
        1 => "once".to_string(),
        2 => "twice".to_string(),
        count => format!("{count} times"),
    }
}

/// Settings of the whole process.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct Process {
    /// Read pairs and settings from a TOML file. Options of the command line apply to the file's
    /// pairs too
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this box, for 'longhaul box status' [default: name of the command]
    #[arg(long)]
    pub name: Option<String>,
    /// User to become once the ports are open, if started as root; use one that runs nothing else
    /// [default: nobody]
    #[arg(long, conflicts_with = "keep_privileges")]
    pub user: Option<String>,
    /// Keep the privileges, so that the box can recreate a deleted TAP device and turn receive
    /// merging (GRO) off on a recreated interface
    #[arg(long)]
    pub keep_privileges: bool,
    /// Path of the control socket, for 'longhaul box status' [default: in the runtime directory, by
    /// name]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Serve GET /healthz, /readyz, /metrics and /state over plain HTTP at this address, without
    /// authentication: use a loopback or management address [default port: 9187]
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub health: Option<longhaul_health::Address>,
    /// Format of the journal on standard error: text, or json with one object per line [default:
    /// text]
    #[arg(long, value_name = "FORM")]
    pub log: Option<Form>,
    /// Maximum frames per recording, both directions together; 0: no limit [default: 1000]
    #[arg(long, value_name = "N")]
    pub pcap_frames: Option<u64>,
    /// Options of DPDK ports.
    #[command(flatten)]
    pub dpdk: Dpdk,
}

/// Settings of a pair, all optional.
pub trait Settings: Table + Clone + Default + DeserializeOwned {
    /// Checks whether a pair may have this number of ports on its second side.
    ///
    /// # Errors
    /// The reason for a refusal, and the cure.
    fn allows(&self, ports: usize) -> Result<(), String> {
        if ports == 1 { Ok(()) } else { Err("ports go in pairs".to_string()) }
    }

    /// These settings, completed with those of lower precedence, `below`.
    fn over(&self, below: &Self) -> Self {
        let mut all = self.clone();
        for key in Self::KEYS {
            (key.fill)(&mut all, self, below);
        }
        all
    }

    /// True if a box with these settings has a transport.
    fn has_transport(&self) -> bool {
        false
    }

    /// The keys in which `to` differs.
    fn differences(&self, to: &Self) -> Vec<Difference> {
        let has_transport = self.has_transport() || to.has_transport();
        let differing = Self::KEYS.iter().filter(|key| !(key.is_same)(self, to));
        let difference = |key: &Key<Self>| Difference {
            key: key.name,
            is_live: match key.changes {
                Changes::Live => true,
                Changes::LiveWithoutTransport => !has_transport,
                Changes::Restart => false,
            },
        };
        differing.map(difference).collect()
    }

    /// Keys with their values, for comparison with those of another process.
    fn written(&self) -> Vec<(String, String)> {
        Self::KEYS.iter().map(|key| (key.name.to_string(), (key.text)(self))).collect()
    }

    /// The cores that share a pair's ports.
    fn cores(&self) -> Cores;

    /// Takes a file's `[[policy]]` tables, at least one, which apply to all pairs.
    ///
    /// # Errors
    /// Their first fault. Boxes without modes take none.
    fn take_policy(&mut self, rules: Vec<Section<'_>>) -> Result<(), Fault> {
        Err(rules[0].place.fault("[[policy]] is for 'longhaul accelerate': remove it"))
    }

    /// Takes a file's `[[far]]` tables, at least one, which apply to all pairs.
    ///
    /// # Errors
    /// Their first fault. Boxes without a transport take none.
    fn take_far(&mut self, boxes: Vec<Section<'_>>) -> Result<(), Fault> {
        Err(boxes[0].place.fault("[[far]] is for 'longhaul accelerate': remove it"))
    }
}

/// A setting that differs between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name in files.
    pub key: &'static str,
    /// True if it can change while a box runs.
    pub is_live: bool,
}

/// A kind of box: its settings, and the elements that they configure.
pub trait BoxKind: Settings + Send + Sync + 'static {
    /// Element between the ports of a pair.
    type Element: Element;
    /// `accelerate` or `emulate`.
    const COMMAND: &'static str;
    /// How frames map to cores that share the ports.
    const SPREAD: Spread;
    /// True if the element uses the arrival times of frames, rather than the times of their
    /// reception from the port.
    const STAMPS: bool;

    /// Checks whether the settings allow `count` cores, which is more than one.
    ///
    /// # Errors
    /// The reason for a refusal, and the cure.
    fn allows_cores(&self, count: NonZeroUsize) -> Result<(), SettingsError>;

    /// Creates an element per core, with its share of the limits, and with a side for each port in
    /// `behind`, those after the first.
    ///
    /// # Errors
    /// If the settings contradict each other.
    fn build(&self, behind: &[PortName]) -> Result<Vec<Self::Element>, SettingsError>;

    /// Writes warnings about the pairs to the journal.
    fn warn(_pairs: &[Pair<Self>]) {}

    /// Warnings about these settings, for health and status.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// A journal line about the element, if there is something to say.
    fn summary(&self) -> Option<String> {
        None
    }

    /// True if the driver must busy-poll, so that frames leave at their deadlines.
    fn is_precise(&self) -> bool {
        false
    }

    /// What ports do when an opposite one loses its carrier.
    fn carrier(&self) -> Carrier {
        Carrier::Off
    }

    /// The change that makes a running element with the ports `behind` its first apply these
    /// settings. Called if all differences are live.
    ///
    /// # Errors
    /// If the settings contradict each other.
    fn change(
        &self,
        behind: &[PortName],
    ) -> Result<<Self::Element as Element>::Change, SettingsError>;
}

/// Two ports and the element between them; more than two if the second side has several paths.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair<S> {
    pub name: String,
    /// The first side's port, then those of the second side.
    pub ports: Vec<PortName>,
    /// Recording of each port.
    pub pcaps: Vec<Option<PathBuf>>,
    pub settings: S,
}

impl<S> Pair<S> {
    /// The ports with the names of their sides, numbered if the second side has several.
    pub fn named_ports(
        &self,
        sides: [&'static str; 2],
    ) -> impl Iterator<Item = (String, &PortName)> {
        let has_paths = self.ports.len() > 2;
        self.ports.iter().enumerate().map(move |(at, port)| {
            let side = sides[at.min(1)];
            (if has_paths && at > 0 { format!("{side}{at}") } else { side.to_string() }, port)
        })
    }
}

/// A box's complete configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S> {
    pub name: String,
    pub user: Option<String>,
    pub keep_privileges: bool,
    pub control: Option<PathBuf>,
    /// Address of health and metrics.
    pub health: Option<longhaul_health::Address>,
    /// Format of the journal.
    pub log: Form,
    pub pcap_frames: u64,
    /// Options of DPDK ports.
    pub dpdk: Dpdk,
    /// Commands for a bypass NIC.
    pub bypass: Option<Bypass>,
    pub pairs: Vec<Pair<S>>,
}

/// Ports on the command line, by side and in order.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Ports per side.
    pub ports: [Vec<PortName>; 2],
    /// Their recordings.
    pub pcaps: [Vec<PathBuf>; 2],
}

/// Default number of frames per recording, as in a lab.
const PCAP_FRAMES: u64 = 1000;

/// Combines the command line with its file. `command` is the default name of the box; `sides` are
/// the names of its sides.
pub fn plan<S: Settings>(
    command: &str,
    sides: [&str; 2],
    given: Given,
    process: &Process,
    settings: &S,
) -> Result<Plan<S>, PlanError> {
    let mut pairs = pairs_given(sides, given, settings)?;
    let file = match &process.config {
        Some(path) => file::read(path, sides, settings)?,
        None => File::default(),
    };
    pairs.extend(file.pairs);
    let of_file = file.process;
    let plan = Plan {
        name: process.name.clone().or(of_file.name).unwrap_or_else(|| command.to_string()),
        user: process.user.clone().or(of_file.user),
        keep_privileges: process.keep_privileges
            || (of_file.keep_privileges && process.user.is_none()),
        control: process.control.clone().or(of_file.control),
        health: process.health.or(of_file.health),
        log: process.log.or(of_file.log).unwrap_or_default(),
        pcap_frames: process.pcap_frames.or(of_file.pcap_frames).unwrap_or(PCAP_FRAMES),
        dpdk: process.dpdk.over(file.dpdk),
        bypass: file.bypass,
        pairs,
    };
    if let (true, Some(path)) = (plan.pairs.is_empty(), &process.config) {
        return Err(PlanError::NoPairs { path: path.clone(), sides: sides.map(str::to_string) });
    }
    check(&plan, sides)?;
    Ok(plan)
}

fn pairs_given<S: Settings>(
    sides: [&str; 2],
    given: Given,
    settings: &S,
) -> Result<Vec<Pair<S>>, PlanError> {
    let [first, second] = given.ports;
    let [one, other] = sides;
    let are_paths = first.len() == 1 && second.len() > 1;
    if first.len() != second.len() && !are_paths {
        return Err(PlanError::Unpaired {
            sides: [one, other].map(str::to_string),
            counts: [first.len(), second.len()],
        });
    }
    if are_paths {
        settings.allows(second.len()).map_err(|why| PlanError::Several {
            sides: [one, other].map(str::to_string),
            count: second.len(),
            why,
        })?;
    }
    let second =
        if are_paths { vec![second] } else { second.into_iter().map(|port| vec![port]).collect() };
    let [mut first_pcaps, mut second_pcaps] = given.pcaps.map(Vec::into_iter);
    let pairs: Vec<_> = first
        .into_iter()
        .zip(second)
        .map(|(first, second)| Pair {
            name: pair_name(&first, &second),
            pcaps: std::iter::once(first_pcaps.next())
                .chain(second.iter().map(|_| second_pcaps.next()))
                .collect(),
            ports: std::iter::once(first).chain(second).collect(),
            settings: settings.clone(),
        })
        .collect();
    for (side, mut left) in [(one, first_pcaps), (other, second_pcaps)] {
        if left.next().is_some() {
            return Err(PlanError::PcapsLeft(side.to_string()));
        }
    }
    Ok(pairs)
}

/// Default name of a pair with these ports.
fn pair_name(first: &PortName, second: &[PortName]) -> String {
    let second: Vec<String> = second.iter().map(short).collect();
    format!("{}-{}", short(first), second.join("+"))
}

/// Short form of a port, for the name of its pair.
fn short(port: &PortName) -> String {
    match port {
        PortName::Interface(name)
        | PortName::Tap(name)
        | PortName::Ethernet { interface: name, .. } => name.clone(),
        PortName::Xdp(xdp) => xdp.interface.clone(),
        PortName::Dpdk { devargs } => devargs.split(',').next().unwrap_or_default().to_string(),
        PortName::Memif { path, .. } => path
            .file_stem()
            .map_or_else(|| "memif".to_string(), |stem| stem.to_string_lossy().into_owned()),
    }
}

fn check<S>(plan: &Plan<S>, sides: [&str; 2]) -> Result<(), PlanError> {
    if plan.pairs.is_empty() {
        return Err(PlanError::NoPorts { sides: sides.map(str::to_string) });
    }
    let ports: Vec<&PortName> = plan.pairs.iter().flat_map(|pair| &pair.ports).collect();
    for (at, port) in ports.iter().enumerate() {
        if ports[..at].iter().any(|before| before.is_same_as(port)) {
            return Err(PlanError::PortTwice((*port).clone()));
        }
    }
    let names: Vec<&str> = plan.pairs.iter().map(|pair| &*pair.name).collect();
    let pcaps: Vec<&PathBuf> = plan.pairs.iter().flat_map(|pair| &pair.pcaps).flatten().collect();
    if let Some(name) = twice(&names) {
        return Err(PlanError::NameTwice((*name).to_string()));
    }
    if let Some(pcap) = twice(&pcaps) {
        return Err(PlanError::PcapTwice((*pcap).clone()));
    }
    Ok(())
}

fn twice<T: PartialEq>(all: &[T]) -> Option<&T> {
    all.iter().enumerate().find(|(at, one)| all[..*at].contains(one)).map(|(_, one)| one)
}

/// Deserialises a setting that a file writes as on the command line.
pub fn written<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    by(from, str::parse)
}

/// As [`written`], for a mandatory setting.
pub fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<T, D::Error> {
    text(from, str::parse)
}

/// As [`written`], parsed by `parse`.
pub fn by<'de, D: Deserializer<'de>, T, E: Display>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, D::Error> {
    text(from, parse).map(Some)
}

/// Parses text. A number is refused with what it lacks: its unit, or only its quotes.
fn text<'de, D: Deserializer<'de>, T, E: Display>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "write the value in quotes")]
    enum Written {
        Text(String),
        Whole(i64),
        Real(f64),
    }
    let number = match Written::deserialize(from)? {
        Written::Text(text) => return parse(&text).map_err(D::Error::custom),
        Written::Whole(number) => number.to_string(),
        Written::Real(number) => number.to_string(),
    };
    Err(match parse(&number) {
        Ok(_) => D::Error::custom(format!("write the value in quotes, as '{number}'")),
        Err(error) => D::Error::custom(format!("write the value in quotes; {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::cores_written;
    use crate::settings::table::settings;
    use longhaul_host::placement::CoreList;

    settings! {
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct Numbers {
            #[serde(deserialize_with = "written")]
            one: Option<u32> => Live;
            two: Option<u32> => Live;
            #[serde(deserialize_with = "cores_written")]
            cores: Option<CoreList> => Restart;
            numa: Option<u32> => Restart;
        }
    }

    impl Settings for Numbers {
        fn cores(&self) -> Cores {
            Cores::new(&self.cores, self.numa)
        }
    }

    fn numbers(one: impl Into<Option<u32>>, two: impl Into<Option<u32>>) -> Numbers {
        Numbers { one: one.into(), two: two.into(), ..Numbers::default() }
    }

    fn given(left: &str, right: &str) -> Given {
        let ports =
            |text: &str| text.split_whitespace().map(|port| port.parse().unwrap()).collect();
        Given { ports: [ports(left), ports(right)], ..Given::default() }
    }

    /// The plan of `file`, with `given` and `settings` on the command line.
    fn planned(
        file: Option<&str>,
        given: Given,
        settings: Numbers,
    ) -> Result<Plan<Numbers>, String> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("longhaul-plan-{}-{number}", std::process::id()));
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
        }
        let process = Process { config: file.map(|_| path.clone()), ..Process::default() };
        let outcome = plan("test", ["lan", "wan"], given, &process, &settings);
        if file.is_some() {
            std::fs::remove_file(&path).unwrap();
        }
        outcome.map_err(|e| e.to_string().replace(&path.display().to_string(), "FILE"))
    }

    #[test]
    fn options_come_in_pairs_in_their_order() {
        let plan =
            planned(None, given("eth1 tap:x", "eth2 memif:/run/w.sock"), numbers(1, None)).unwrap();
        let names: Vec<&str> = plan.pairs.iter().map(|pair| &*pair.name).collect();
        assert_eq!(
            (names, &*plan.name, plan.pcap_frames),
            (vec!["eth1-eth2", "x-w"], "test", 1000)
        );
        assert!(plan.pairs.iter().all(|pair| pair.settings == numbers(1, None)));
    }

    #[test]
    fn the_command_line_goes_before_the_pair_and_the_pair_before_the_defaults() {
        let file = r#"
            name = "west"
            user = "daemon"
            pcap_frames = 0
            [defaults]
            one = "1"
            two = 2
            [[pair]]
            lan = "eth1"
            wan = "tap:lh0"
            pcap_wan = "/tmp/wan.pcap"
            one = "11"
            [[pair]]
            name = "second"
            lan = "eth3"
            wan = "eth4"
        "#;
        let plan = planned(Some(file), given("eth5", "eth6"), numbers(None, 222)).unwrap();
        let settings: Vec<Numbers> = plan.pairs.iter().map(|pair| pair.settings.clone()).collect();
        assert_eq!(settings, [numbers(None, 222), numbers(11, 222), numbers(1, 222)]);
        assert_eq!(plan.pairs[1].name, "eth1-lh0");
        assert_eq!(plan.pairs[1].pcaps, vec![None, Some("/tmp/wan.pcap".into())]);
        assert_eq!(
            (&*plan.name, plan.user.as_deref(), plan.pcap_frames),
            ("west", Some("daemon"), 0)
        );
    }

    #[test]
    fn a_list_of_ports_is_several_where_that_is_allowed() {
        let with = |wan: &str| format!("[[pair]]\nlan = 'eth1'\nwan = {wan}");
        for (file, told) in [
            (with("['eth2', 'eth3']"), "FILE:3: 'wan' has 2 ports: ports go in pairs"),
            (with("['eth2', 3]"), "FILE:3: wan: invalid type: integer `3`, expected a string"),
            (with("['eth2']\npcap_wan = ['x', 'y']"), "FILE:4: pcap_wan: 2 paths for 1 of 'wan'"),
        ] {
            let refusal = planned(Some(&file), Given::default(), Numbers::default()).unwrap_err();
            assert_eq!(refusal, told);
        }
        let file = with("['eth2']\npcap_wan = 'x'");
        let plan = planned(Some(&file), Given::default(), Numbers::default()).unwrap();
        assert_eq!(plan.pairs[0].pcaps, [None, Some("x".into())]);
        let refusal = planned(None, given("eth1", "eth2 eth3"), Numbers::default()).unwrap_err();
        assert_eq!(refusal, "--lan is given once and --wan twice");
    }

    #[test]
    fn cores_are_a_number_or_a_list() {
        let cores = |text: &str| {
            let file = format!("[[pair]]\nlan = 'eth1'\nwan = 'eth2'\n{text}");
            let plan = planned(Some(&file), Given::default(), Numbers::default());
            plan.map(|plan| plan.pairs[0].settings.cores())
        };
        assert_eq!(cores("").unwrap().count().get(), 1);
        assert_eq!(cores("cores = 3\n").unwrap().count().get(), 3);
        let listed = cores("cores = '4-5,7'\nnuma = 1").unwrap();
        assert_eq!((listed.list.unwrap().to_string(), listed.numa), ("4-5,7".to_string(), Some(1)));
        for text in ["cores = 0", "cores = '7-4'", "cores = '1,1'", "cores = -1", "cores = true"] {
            assert!(cores(text).unwrap_err().starts_with("FILE:"), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_place() {
        let pair = "[[pair]]\nlan = \"eth1\"\nwan = \"eth2\"\n";
        for (file, part) in [
            (String::new(), "FILE has no [[pair]]"),
            (format!("{pair}one = 5"), "FILE:4: one: write the value in quotes, as '5'"),
            (format!("{pair}one = -5.5"), "FILE:4: one: write the value in quotes; invalid digit"),
            (format!("{pair}one = true"), "FILE:4: one: write the value in quotes"),
            ("\n[[pair]]\nlan = \"eth1\"".into(), "FILE:2: [[pair]] has no 'wan': name a port"),
            (
                format!("{pair}lam = \"x\""),
                "FILE:4: [[pair]] has no key 'lam'; did you mean 'lan'?",
            ),
            (format!("{pair}one = \"x\""), "FILE:4: one: invalid digit"),
            (format!("{pair}two = \"x\""), "FILE:4: two: invalid type: string \"x\", expected u32"),
            (
                format!("{pair}[defaults]\nthree = 3"),
                "FILE:5: [defaults] has no key 'three'; its keys are one, two, cores, numa",
            ),
            (format!("{pair}[defaults]\ntow = 3"), "FILE:5: [defaults] has no key 'tow'; did you"),
            (format!("{pair}[defaults]\nhealth = '::1'"), "FILE:5: 'health' belongs in the file's"),
            (format!("two = 2\n{pair}"), "FILE:1: 'two' belongs in [defaults] or [[pair]]"),
            (format!("\nnam = \"x\"\n{pair}"), "FILE:2: the file's top has no key 'nam'; did you"),
            (format!("{pair}[default]\n"), "FILE:4: the file's top has no key 'default'; did you"),
            (format!("{pair}[dpdk]\nmtv = 9"), "FILE:5: [dpdk] has no key 'mtv'; did you mean"),
            (format!("{pair}[dpdk]\nmtu = 'x'"), "FILE:5: mtu: invalid type: string"),
            ("[pair]\nlan = \"eth1\"".into(), "FILE:1: write [[pair]]: there may be several"),
            ("\n[[defaults]]\n".into(), "FILE:2: write [defaults] and its keys below it"),
            ("\n\nuser = [".into(), "FILE:3: "),
            (format!("{pair}pcap_lan = 7"), "FILE:4: pcap_lan: invalid type: integer `7`"),
            (format!("{pair}[[policy]]\nmode = \"off\""), "FILE:4: [[policy]] is for 'longhaul"),
            (format!("{pair}[[far]]\nprefix = \"::/0\""), "FILE:4: [[far]] is for 'longhaul"),
            (format!("{pair}{pair}"), "port eth1 is named twice"),
            (format!("{pair}pcap_lan = \"x\"\npcap_wan = \"x\""), "two recordings go to x"),
            ("[[pair]]\nlan = \"eth1\"\nwan = \"udp:x\"".into(), "FILE:3: wan: not a port"),
        ] {
            let refusal = planned(Some(&file), Given::default(), Numbers::default()).unwrap_err();
            assert!(refusal.contains(part) && !refusal.contains('\n'), "{file}: {refusal}");
        }
        let refusal = planned(None, given("eth1 eth2", "eth3"), Numbers::default()).unwrap_err();
        assert_eq!(refusal, "--lan is given twice and --wan once");
        let too_many =
            Given { pcaps: [vec![], vec!["x".into(), "y".into()]], ..given("eth1", "eth2") };
        let refusal = planned(None, too_many, Numbers::default()).unwrap_err();
        assert!(refusal.starts_with("--pcap-wan is given more often than --wan"), "{refusal}");
    }
}
