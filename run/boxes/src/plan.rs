//! What a box is to do: pairs of ports with their settings, from the command line and from a file.

use crate::cores::Cores;
use crate::element::Element;
use crate::error::PathError;
use crate::journal::Form;
use crate::port::{Dpdk, PortName};
use crate::settings::SettingsError;
use crate::settings::table::{Changes, Key, Table};
use longhaul_host::Spread;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// Why a plan cannot be made.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] PathError),
    /// The file is no TOML, or has values of other types.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where in it, from 1 on.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// The file says something that cannot be.
    #[error("{}: {detail}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What.
        detail: String,
    },
    /// One side has more ports than the other.
    #[error(
        "--{} is given {} times and --{} {} times",
        .sides[0], .counts[0], .sides[1], .counts[1]
    )]
    Unpaired {
        /// What the sides are called.
        sides: [String; 2],
        /// How many ports each has.
        counts: [usize; 2],
    },
    /// The second side has several ports, and may not.
    #[error("--{} is given once and --{} {count} times", .sides[0], .sides[1])]
    Several {
        /// What the sides are called.
        sides: [String; 2],
        /// How many ports the second has.
        count: usize,
        /// What rules that out.
        why: String,
    },
    /// A side has more recordings than ports.
    #[error("--pcap-{0} is given more often than --{0}")]
    PcapsLeft(String),
    /// There is no pair.
    #[error("no ports")]
    NoPorts {
        /// What the sides are called.
        sides: [String; 2],
    },
    /// A port is in two pairs.
    #[error("port {0} is named twice")]
    PortTwice(PortName),
    /// Two pairs have a name.
    #[error("two pairs are called '{0}'")]
    NameTwice(String),
    /// Two recordings have a file.
    #[error("two recordings go to {}", .0.display())]
    PcapTwice(PathBuf),
}

/// What is said once for all pairs.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct Process {
    /// Pairs and settings from a TOML file as well. What the command line says holds for the file's
    /// pairs too
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this box, for 'longhaul box status' [default: the command's]
    #[arg(long)]
    pub name: Option<String>,
    /// Whom to run as once the ports are open, when started as root: best a user that nothing else
    /// runs as, which nobody is not [default: nobody]
    #[arg(long, conflicts_with = "keep_privileges")]
    pub user: Option<String>,
    /// Stay what it was started as: a TAP that is deleted is then made again, and receive merging
    /// (GRO) turned off on an interface that is
    #[arg(long)]
    pub keep_privileges: bool,
    /// Socket that 'longhaul box status' asks [default: in the runtime directory, by the name]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Answer GET /healthz, /readyz, /metrics and /state by plain HTTP at this address, without
    /// asking who asks: a loopback or management one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub health: Option<SocketAddr>,
    /// How to write what happens to standard error: as text, or as JSON, an object to a line
    /// [default: text]
    #[arg(long, value_name = "FORM")]
    pub log: Option<Form>,
    /// How many frames each recording takes, both directions together; 0: no limit [default: 1000]
    #[arg(long, value_name = "N")]
    pub pcap_frames: Option<u64>,
    /// How ports of DPDK's are opened.
    #[command(flatten)]
    pub dpdk: Dpdk,
}

/// Settings of a pair, each of which may be left out.
pub trait Settings: Table + Clone + Default + DeserializeOwned {
    /// How many ports a pair may have on its second side.
    ///
    /// # Errors
    /// Why so many are too many, and what to do.
    fn allows(&self, ports: usize) -> Result<(), String> {
        if ports == 1 { Ok(()) } else { Err("ports go in pairs".to_string()) }
    }

    /// These, and what they leave out from `below`.
    fn over(&self, below: &Self) -> Self {
        let mut all = self.clone();
        for key in Self::KEYS {
            (key.fill)(&mut all, self, below);
        }
        all
    }

    /// Whether a box of these has a transport.
    fn has_transport(&self) -> bool {
        false
    }

    /// In what `to` is not the same.
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

    /// The cores that share a pair's ports.
    fn cores(&self) -> Cores;

    /// Takes a file's `[[policy]]` tables, which hold for all pairs.
    ///
    /// # Errors
    /// What is wrong with them. A box without modes has none.
    fn take_policy(&mut self, _rules: Vec<toml::Table>) -> Result<(), String> {
        Err("[[policy]] is for 'longhaul accelerate': take it out".to_string())
    }

    /// Takes a file's `[[far]]` tables, which hold for all pairs.
    ///
    /// # Errors
    /// What is wrong with them. A box without a transport has none.
    fn take_far(&mut self, _boxes: Vec<toml::Table>) -> Result<(), String> {
        Err("[[far]] is for 'longhaul accelerate': take it out".to_string())
    }
}

/// A setting that is not the same in two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// As files have it.
    pub key: &'static str,
    /// It can change while a box runs.
    pub is_live: bool,
}

/// Settings of a kind of box: what they make, and what of it can change.
pub trait BoxKind: Settings + Send + Sync + 'static {
    /// What is between the ports of a pair.
    type Element: Element;
    /// `accelerate` or `emulate`.
    const COMMAND: &'static str;
    /// Which core a frame belongs to where several share the ports.
    const SPREAD: Spread;
    /// Whether it counts when a frame arrived, and not only when it is taken from its port.
    const STAMPS: bool;

    /// Whether its settings allow for so many cores, more than one.
    ///
    /// # Errors
    /// Why not, and what to do.
    fn allows_cores(&self, count: NonZeroUsize) -> Result<(), SettingsError>;

    /// Makes one for each core, with its part of what is bounded for all, and a side for each of
    /// these ports behind the first.
    ///
    /// # Errors
    /// When the settings make no sense together.
    fn build(&self, behind: &[PortName]) -> Result<Vec<Self::Element>, SettingsError>;

    /// Writes to the journal what will not work as it should.
    fn warn(_pairs: &[Pair<Self>]) {}

    /// What in these settings weakens what they ask for, for health and status.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What stands between the ports of a pair, for the journal, where there is something to say
    /// about it.
    fn summary(&self) -> Option<String> {
        None
    }

    /// True when frames are to be met at the moment that they are due, at the price of a processor.
    fn is_precise(&self) -> bool {
        false
    }

    /// What a running element with these ports behind the first is told so that it goes by these
    /// settings. Asked for when all differences are live.
    ///
    /// # Errors
    /// When the settings make no sense together.
    fn change(
        &self,
        behind: &[PortName],
    ) -> Result<<Self::Element as Element>::Change, SettingsError>;
}

/// Two ports and what is between them; more than two where the second side has several paths.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair<S> {
    pub name: String,
    /// That of the first side, and those of the second.
    pub ports: Vec<PortName>,
    /// Where to record what passes each of them.
    pub pcaps: Vec<Option<PathBuf>>,
    pub settings: S,
}

impl<S> Pair<S> {
    /// Its ports with what their sides are called: of several on the second side, each has a
    /// number.
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

/// Everything that a box is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<S> {
    pub name: String,
    pub user: Option<String>,
    pub keep_privileges: bool,
    pub control: Option<PathBuf>,
    /// Where health and metrics are asked for by HTTP.
    pub health: Option<SocketAddr>,
    /// How the journal is written.
    pub log: Form,
    pub pcap_frames: u64,
    /// How ports of DPDK's are opened.
    pub dpdk: Dpdk,
    pub pairs: Vec<Pair<S>>,
}

/// What the command line says of ports, by side and in order.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The ports of each side.
    pub ports: [Vec<PortName>; 2],
    /// Where to record what passes them.
    pub pcaps: [Vec<PathBuf>; 2],
}

/// What recordings take unless told otherwise: as in a lab.
const PCAP_FRAMES: u64 = 1000;

/// Puts together what the command line and its file say. `command` is the box's name unless it is
/// given another, `sides` what its two sides are called.
pub fn plan<S: Settings>(
    command: &str,
    sides: [&str; 2],
    given: Given,
    process: &Process,
    settings: &S,
) -> Result<Plan<S>, PlanError> {
    let mut pairs = pairs_given(sides, given, settings)?;
    let mut file: File<S> = match &process.config {
        Some(path) => read(path)?,
        None => File::default(),
    };
    if let Some(path) = &process.config {
        let of_file = |detail: String| PlanError::File { path: path.clone(), detail };
        if let Some(key) = file.defaults.unknown.keys().next() {
            return Err(of_file(format!("[defaults] has no key '{key}'")));
        }
        if !file.policy.is_empty() {
            file.defaults
                .settings
                .take_policy(std::mem::take(&mut file.policy))
                .map_err(of_file)?;
        }
        if !file.far.is_empty() {
            file.defaults.settings.take_far(std::mem::take(&mut file.far)).map_err(of_file)?;
        }
        let below = settings.over(&file.defaults.settings);
        for (number, table) in (1..).zip(file.pair) {
            let pair = table.into_pair(sides, settings, &below);
            pairs.push(pair.map_err(|detail| of_file(format!("pair {number}: {detail}")))?);
        }
    }
    let plan = Plan {
        name: process.name.clone().or(file.name).unwrap_or_else(|| command.to_string()),
        user: process.user.clone().or(file.user),
        keep_privileges: process.keep_privileges
            || (file.keep_privileges && process.user.is_none()),
        control: process.control.clone().or(file.control),
        health: process.health.or(file.health),
        log: process.log.or(file.log).unwrap_or_default(),
        pcap_frames: process.pcap_frames.or(file.pcap_frames).unwrap_or(PCAP_FRAMES),
        dpdk: process.dpdk.over(file.dpdk),
        pairs,
    };
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

/// What a pair with these ports on its sides is called unless it is given another name.
fn pair_name(first: &PortName, second: &[PortName]) -> String {
    let second: Vec<String> = second.iter().map(short).collect();
    format!("{}-{}", short(first), second.join("+"))
}

/// A port in the name of its pair.
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

/// A configuration file.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File<S: Settings> {
    name: Option<String>,
    user: Option<String>,
    keep_privileges: bool,
    control: Option<PathBuf>,
    health: Option<SocketAddr>,
    log: Option<Form>,
    pcap_frames: Option<u64>,
    dpdk: Dpdk,
    policy: Vec<toml::Table>,
    far: Vec<toml::Table>,
    #[serde(bound(deserialize = ""))]
    defaults: Section<S>,
    #[serde(bound(deserialize = ""))]
    pair: Vec<Section<S>>,
}

impl<S: Settings> Default for File<S> {
    fn default() -> Self {
        File {
            name: None,
            user: None,
            keep_privileges: false,
            control: None,
            health: None,
            log: None,
            pcap_frames: None,
            dpdk: Dpdk::default(),
            policy: Vec::new(),
            far: Vec::new(),
            defaults: Section::default(),
            pair: Vec::new(),
        }
    }
}

/// Settings, and other keys.
#[derive(Deserialize)]
#[serde(bound(deserialize = ""))]
struct Section<S: Settings> {
    #[serde(flatten)]
    settings: S,
    #[serde(flatten)]
    unknown: BTreeMap<String, toml::Value>,
}

impl<S: Settings> Default for Section<S> {
    fn default() -> Self {
        Section { settings: S::default(), unknown: BTreeMap::new() }
    }
}

impl<S: Settings> Section<S> {
    fn into_pair(mut self, sides: [&str; 2], above: &S, below: &S) -> Result<Pair<S>, String> {
        let (first, second) = (self.port(sides[0])?, self.ports(sides[1])?);
        let mut pcaps = vec![self.pcap(sides[0])?];
        pcaps.extend(self.pcaps(sides[1], second.len())?);
        let name = self.text("name")?;
        let settings = above.over(&self.settings).over(below);
        settings
            .allows(second.len())
            .map_err(|why| format!("'{}' has {} ports: {why}", sides[1], second.len()))?;
        if let Some(key) = self.unknown.keys().next() {
            return Err(format!("there is no key '{key}'"));
        }
        Ok(Pair {
            name: name.unwrap_or_else(|| pair_name(&first, &second)),
            ports: std::iter::once(first).chain(second).collect(),
            pcaps,
            settings,
        })
    }

    fn port(&mut self, side: &str) -> Result<PortName, String> {
        let text = self.text(side)?.ok_or_else(|| format!("it has no '{side}': name a port"))?;
        text.parse().map_err(|e| format!("{side}: {e}"))
    }

    /// Of the second side: a port, or a list.
    fn ports(&mut self, side: &str) -> Result<Vec<PortName>, String> {
        let Some(toml::Value::Array(_)) = self.unknown.get(side) else {
            return Ok(vec![self.port(side)?]);
        };
        let texts = self.texts(side)?;
        let read = |text: String| text.parse().map_err(|e| format!("{side}: {e}"));
        texts.into_iter().map(read).collect()
    }

    /// Recordings of the second side's ports, of which there are so many: a path, which is the
    /// first one's, or a list.
    fn pcaps(&mut self, side: &str, ports: usize) -> Result<Vec<Option<PathBuf>>, String> {
        let key = format!("pcap_{side}");
        let Some(toml::Value::Array(_)) = self.unknown.get(&key) else {
            let mut pcaps = vec![None; ports];
            if let (Some(first), Some(path)) = (pcaps.first_mut(), self.pcap(side)?) {
                *first = Some(path);
            }
            return Ok(pcaps);
        };
        let paths = self.texts(&key)?;
        if paths.len() != ports {
            return Err(format!("'{key}' has {} paths and '{side}' {ports} ports", paths.len()));
        }
        Ok(paths.into_iter().map(|path| Some(path.into())).collect())
    }

    fn texts(&mut self, key: &str) -> Result<Vec<String>, String> {
        let values = match self.unknown.remove(key) {
            Some(toml::Value::Array(values)) => values,
            _ => Vec::new(),
        };
        let text = |value: toml::Value| match value {
            toml::Value::String(text) => Ok(text),
            other => {
                Err(format!("'{key}' is to be a list of strings, not of type {}", other.type_str()))
            }
        };
        values.into_iter().map(text).collect()
    }

    fn pcap(&mut self, side: &str) -> Result<Option<PathBuf>, String> {
        Ok(self.text(&format!("pcap_{side}"))?.map(PathBuf::from))
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.unknown.remove(key) {
            Some(toml::Value::String(text)) => Ok(Some(text)),
            Some(other) => {
                Err(format!("'{key}' is to be a string, not of type {}", other.type_str()))
            }
            None => Ok(None),
        }
    }
}

fn read<S: Settings>(path: &Path) -> Result<File<S>, PlanError> {
    let text = std::fs::read_to_string(path).map_err(|e| PathError::new("read", path, e))?;
    toml::from_str(&text).map_err(|e| {
        let line =
            e.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        let message = e.message().lines().collect::<Vec<_>>().join("; ");
        PlanError::Syntax { path: path.to_owned(), line, message }
    })
}

/// A setting that is written in a file as on the command line.
pub fn written<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    by(from, str::parse)
}

/// As [`written`], read by `parse`.
pub fn by<'de, D: Deserializer<'de>, T, E: Display>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map(Some).map_err(serde::de::Error::custom)
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

    /// A plan from `file`, with `given` and `settings` on the command line.
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
        let mut table: Section<Numbers> =
            toml::from_str("lan = 'eth1'\nwan = ['eth2', 'eth3']\npcap_wan = ['x', 'y']").unwrap();
        let ports: Vec<String> =
            table.ports("wan").unwrap().iter().map(PortName::to_string).collect();
        assert_eq!(ports, ["eth2", "eth3"]);
        assert!(table.pcaps("wan", 3).unwrap_err().contains("has 2 paths and 'wan' 3 ports"));
        let mut one: Section<Numbers> =
            toml::from_str("lan = 'eth1'\nwan = 'eth2'\npcap_wan = 'x'").unwrap();
        assert_eq!(one.ports("wan").unwrap().len(), 1);
        assert_eq!(one.pcaps("wan", 2).unwrap(), [Some("x".into()), None]);
        let file = "[[pair]]\nlan = 'eth1'\nwan = ['eth2', 'eth3']";
        let refusal = planned(Some(file), Given::default(), Numbers::default()).unwrap_err();
        assert_eq!(refusal, "FILE: pair 1: 'wan' has 2 ports: ports go in pairs");
        let refusal = planned(None, given("eth1", "eth2 eth3"), Numbers::default()).unwrap_err();
        assert_eq!(refusal, "--lan is given once and --wan 2 times");
        let file = "[[pair]]\nlan = 'eth1'\nwan = ['eth2', 3]";
        let refusal = planned(Some(file), Given::default(), Numbers::default()).unwrap_err();
        assert!(
            refusal.contains("'wan' is to be a list of strings, not of type integer"),
            "{refusal}"
        );
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
            (String::new(), "no ports"),
            ("[[pair]]\nlan = \"eth1\"".into(), "FILE: pair 1: it has no 'wan'"),
            (format!("{pair}lam = \"x\""), "FILE: pair 1: there is no key 'lam'"),
            (format!("{pair}one = \"x\""), "FILE:1: invalid digit"),
            (format!("{pair}[defaults]\nthree = 3"), "FILE: [defaults] has no key 'three'"),
            (format!("nam = \"x\"\n{pair}"), "FILE:1: unknown field `nam`"),
            ("\n\nuser = [".into(), "FILE:3: "),
            (format!("{pair}pcap_lan = 7"), "FILE: pair 1: 'pcap_lan' is to be a string"),
            (
                format!("{pair}[[policy]]\nmode = \"off\""),
                "FILE: [[policy]] is for 'longhaul accelerate'",
            ),
            (
                format!("{pair}[[far]]\nprefix = \"::/0\""),
                "FILE: [[far]] is for 'longhaul accelerate'",
            ),
            (format!("{pair}{pair}"), "port eth1 is named twice"),
            (format!("{pair}pcap_lan = \"x\"\npcap_wan = \"x\""), "two recordings go to x"),
            ("[[pair]]\nlan = \"eth1\"\nwan = \"udp:x\"".into(), "FILE: pair 1: wan: not a port"),
        ] {
            let refusal = planned(Some(&file), Given::default(), Numbers::default()).unwrap_err();
            assert!(refusal.contains(part) && !refusal.contains('\n'), "{file}: {refusal}");
        }
        let refusal = planned(None, given("eth1 eth2", "eth3"), Numbers::default()).unwrap_err();
        assert_eq!(refusal, "--lan is given 2 times and --wan 1 times");
        let too_many =
            Given { pcaps: [vec![], vec!["x".into(), "y".into()]], ..given("eth1", "eth2") };
        let refusal = planned(None, too_many, Numbers::default()).unwrap_err();
        assert!(refusal.starts_with("--pcap-wan is given more often than --wan"), "{refusal}");
    }
}
