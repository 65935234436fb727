//! Operation of a running box: state, reconfiguration, draining.

use crate::carrier::Carriers;
use crate::element::Element;
use crate::error::Error;
use crate::journal;
use crate::pair;
use crate::plan::{BoxKind, Pair, Plan, PlanError};
use crate::status::{BoxStatus, PairStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Makes a box's plan from its command line and the current contents of its file.
pub type Planner<S> = Box<dyn Fn() -> Result<Plan<S>, PlanError> + Send + Sync>;

/// Requests to a running box, from any thread.
pub trait Operated: Send + Sync {
    /// The box's state; `None` once a pair has stopped or hangs.
    fn status(&self) -> Option<BoxStatus>;

    /// Reasons why the box is not ready; empty if it is.
    fn not_ready(&self) -> Vec<String>;

    /// Warnings about its configuration.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Descriptions of the pairs that hang.
    fn stuck(&self) -> Vec<String>;

    /// Rereads the configuration file, and applies all of it or nothing. Returns descriptions of
    /// the changes.
    ///
    /// # Errors
    /// The file's fault, or the changes that need a restart.
    fn reload(&self) -> Result<Vec<String>, Error>;

    /// Starts or stops draining.
    ///
    /// # Errors
    /// If the box never has flows.
    fn set_draining(&self, draining: bool) -> Result<(), Error>;
}

/// A running box.
pub struct Operation<S: BoxKind> {
    name: String,
    user: String,
    started: Instant,
    pairs: Vec<pair::Observer<S::Element>>,
    carriers: Carriers,
    /// The plan in effect.
    plan: Mutex<Plan<S>>,
    /// `None`: the box has no file.
    planner: Option<Planner<S>>,
}

impl<S: BoxKind> Operation<S> {
    /// The operation of a box that was started with `plan`, with one observer per pair.
    pub fn new(
        plan: Plan<S>,
        planner: Option<Planner<S>>,
        user: String,
        pairs: Vec<pair::Observer<S::Element>>,
        carriers: Carriers,
    ) -> Self {
        let (name, started) = (plan.name.clone(), Instant::now());
        Operation { name, user, started, pairs, carriers, plan: Mutex::new(plan), planner }
    }

    /// True if the box has a file to reread.
    pub fn has_file(&self) -> bool {
        self.planner.is_some()
    }

    /// The observers of its pairs.
    pub fn observers(&self) -> &[pair::Observer<S::Element>] {
        &self.pairs
    }

    /// The plan in effect.
    pub fn plan(&self) -> MutexGuard<'_, Plan<S>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The carriers of its ports.
    pub fn carriers(&self) -> &Carriers {
        &self.carriers
    }

    /// True if it was told to drain.
    pub fn is_draining(&self) -> bool {
        let pairs = self.pairs.iter().filter_map(pair::Observer::brief);
        pairs.filter_map(|pair| pair.accelerator).any(|accelerator| accelerator.is_draining)
    }

    /// The box's state, with these states of its pairs.
    pub fn with(&self, mut pairs: Vec<PairStatus>) -> BoxStatus {
        for pair in &mut pairs {
            pair.carrier = self.carriers.of(&pair.name);
        }
        BoxStatus {
            name: self.name.clone(),
            command: S::COMMAND.to_string(),
            pid: std::process::id(),
            user: self.user.clone(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            not_ready: pairs.iter().flat_map(PairStatus::not_ready).collect(),
            notes: self.notes(),
            pairs,
        }
    }
}

impl<S: BoxKind> Operated for Operation<S> {
    fn status(&self) -> Option<BoxStatus> {
        if !self.stuck().is_empty() {
            return None;
        }
        let pairs =
            self.pairs.iter().map(pair::Observer::status).collect::<Option<Vec<PairStatus>>>()?;
        Some(self.with(pairs))
    }

    fn not_ready(&self) -> Vec<String> {
        let stuck = self.stuck();
        if !stuck.is_empty() {
            return stuck;
        }
        let pairs =
            self.pairs.iter().map(pair::Observer::brief).collect::<Option<Vec<PairStatus>>>();
        pairs.map_or_else(
            || vec!["it is shutting down".to_string()],
            |pairs| self.with(pairs).not_ready,
        )
    }

    fn notes(&self) -> Vec<String> {
        let plan = self.plan();
        let of_pair = |pair: &Pair<S>| {
            let notes = pair.settings.notes().into_iter();
            notes.map(|note| format!("pair {}: {note}", pair.name)).collect::<Vec<_>>()
        };
        plan.pairs.iter().flat_map(of_pair).collect()
    }

    fn stuck(&self) -> Vec<String> {
        let stuck = self.pairs.iter().filter(|pair| !pair.is_turning());
        stuck.map(|pair| format!("pair {}: its thread is stuck", pair.name())).collect()
    }

    fn reload(&self) -> Result<Vec<String>, Error> {
        let Some(planner) = &self.planner else {
            return Err(Error::NoFile(self.name.clone()));
        };
        let mut plan = self.plan();
        let to = planner()?;
        let fixed = fixed_differences(&plan, &to);
        if !fixed.is_empty() {
            return Err(Error::TakesRestart(fixed));
        }
        let mut changes = Vec::new();
        let mut told = Vec::new();
        for ((from, to), observer) in plan.pairs.iter().zip(&to.pairs).zip(&self.pairs) {
            let differences = from.settings.differences(&to.settings);
            if !differences.is_empty() {
                let change = to.settings.change(&to.ports[1..]);
                let change = change
                    .map_err(|error| Error::NothingChanged { pair: to.name.clone(), error })?;
                changes.push((observer, change));
            }
            told.extend(differences.iter().map(|one| format!("pair {}: {}", to.name, one.key)));
        }
        for (observer, change) in changes {
            let refused = |why| Error::Refused { pair: observer.name().to_string(), why };
            observer.apply(&change).map_err(refused)?;
        }
        *plan = to;
        journal::line(&match &told[..] {
            [] => "configuration reread: nothing differs".to_string(),
            told => format!("configuration reread; changed: {}", told.join(", ")),
        });
        Ok(told)
    }

    fn set_draining(&self, draining: bool) -> Result<(), Error> {
        let told: Vec<()> =
            self.pairs.iter().filter_map(|pair| pair.set_draining(draining)).collect();
        if told.len() < self.pairs.len() {
            return Err(Error::NoFlows(self.name.clone()));
        }
        let what = if draining { "draining: accepts no new flows" } else { "accepting flows" };
        journal::line(&format!("'{}' {what}", self.name));
        Ok(())
    }
}

/// Descriptions of the differences that need a restart.
fn fixed_differences<S: BoxKind>(from: &Plan<S>, to: &Plan<S>) -> Vec<String> {
    // Without `..`, so that a missing key does not compile.
    let Plan {
        name,
        user,
        keep_privileges,
        control,
        health,
        log,
        pcap_frames,
        dpdk,
        bypass,
        pairs,
    } = from;
    let mut fixed: Vec<String> = [
        ("name", *name == to.name),
        ("user", *user == to.user),
        ("keep_privileges", *keep_privileges == to.keep_privileges),
        ("control", *control == to.control),
        ("health", *health == to.health),
        ("log", *log == to.log),
        ("pcap_frames", *pcap_frames == to.pcap_frames),
        ("dpdk", *dpdk == to.dpdk),
        ("bypass", *bypass == to.bypass),
    ]
    .into_iter()
    .filter(|(_, same)| !same)
    .map(|(key, _)| key.to_string())
    .collect();
    let names =
        |plan: &Plan<S>| plan.pairs.iter().map(|pair| pair.name.clone()).collect::<Vec<_>>();
    if names(from) != names(to) {
        fixed.push(format!(
            "the pairs are {} and were {}",
            names(to).join(", "),
            names(from).join(", ")
        ));
        return fixed;
    }
    fixed.extend(pairs.iter().zip(&to.pairs).flat_map(|(from, to)| fixed_in_pair(from, to)));
    fixed
}

fn fixed_in_pair<S: BoxKind>(from: &Pair<S>, to: &Pair<S>) -> Vec<String> {
    let mut fixed = Vec::new();
    if from.ports.len() != to.ports.len() {
        fixed.push(format!("it has {} ports and had {}", to.ports.len(), from.ports.len()));
    }
    let sides = S::Element::SIDES;
    for ((side, from), to) in from.named_ports(sides).zip(&to.ports) {
        if from != to {
            fixed.push(format!("{side} is {to} and was {from}"));
        }
    }
    for ((side, _), (from, to)) in to.named_ports(sides).zip(from.pcaps.iter().zip(&to.pcaps)) {
        if from != to {
            fixed.push(format!("pcap_{side}"));
        }
    }
    let differences = from.settings.differences(&to.settings);
    fixed.extend(differences.iter().filter(|one| !one.is_live).map(|one| one.key.to_string()));
    fixed.iter().map(|what| format!("pair {}: {what}", to.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::Cores;
    use crate::plan::Settings;
    use crate::port::PortName;
    use crate::settings::SettingsError;
    use crate::settings::table::settings;
    use longhaul_host::Spread;
    use longhaul_link::Link;
    use serde::Deserialize;
    use std::num::NonZeroUsize;

    settings! {
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        pub struct Numbers {
            live: Option<u32> => Live;
            fixed: Option<u32> => Restart;
        }
    }

    impl Settings for Numbers {
        fn cores(&self) -> Cores {
            Cores::default()
        }
    }

    impl BoxKind for Numbers {
        type Element = Link;
        const COMMAND: &'static str = "test";
        const SPREAD: Spread = Spread::BySide;
        const STAMPS: bool = false;

        fn allows_cores(&self, _count: NonZeroUsize) -> Result<(), SettingsError> {
            Ok(())
        }

        fn build(&self, _behind: &[PortName]) -> Result<Vec<Link>, SettingsError> {
            Err(SettingsError::FixedFibre)
        }

        fn change(&self, _behind: &[PortName]) -> Result<std::convert::Infallible, SettingsError> {
            Err(SettingsError::FixedFibre)
        }
    }

    fn plan() -> Plan<Numbers> {
        let port = |name: &str| name.parse::<PortName>().unwrap();
        Plan {
            name: "west".to_string(),
            user: None,
            keep_privileges: false,
            control: None,
            health: None,
            log: journal::Form::Text,
            pcap_frames: 0,
            dpdk: Default::default(),
            bypass: None,
            pairs: vec![Pair {
                name: "one".to_string(),
                ports: vec![port("eth1"), port("eth2")],
                pcaps: vec![None, None],
                settings: Numbers { live: Some(1), fixed: Some(1) },
            }],
        }
    }

    #[test]
    fn what_takes_a_restart_is_named_and_what_does_not_is_not() {
        let changed = |change: fn(&mut Plan<Numbers>)| {
            let mut to = plan();
            change(&mut to);
            fixed_differences(&plan(), &to).join(", ")
        };
        assert_eq!(changed(|_| ()), "");
        assert_eq!(changed(|to| to.pairs[0].settings.live = Some(2)), "");
        assert_eq!(changed(|to| to.pairs[0].settings.fixed = Some(2)), "pair one: fixed");
        assert_eq!(changed(|to| to.user = Some("x".to_string())), "user");
        assert_eq!(
            changed(|to| to.pairs[0].ports[1] = "eth3".parse().unwrap()),
            "pair one: b is eth3 and was eth2"
        );
        assert_eq!(
            changed(|to| to.pairs[0].ports.push("eth3".parse().unwrap())),
            "pair one: it has 3 ports and had 2"
        );
        assert_eq!(changed(|to| to.pairs[0].pcaps[0] = Some("x".into())), "pair one: pcap_a");
        assert_eq!(
            changed(|to| to.pairs[0].name = "two".to_string()),
            "the pairs are two and were one"
        );
        assert_eq!(changed(|to| to.pairs.clear()), "the pairs are  and were one");
    }

    #[test]
    fn a_box_without_a_file_says_so_and_one_that_cannot_read_it_changes_nothing() {
        let of = |planner| {
            Operation::<Numbers>::new(plan(), planner, String::new(), vec![], Carriers::default())
        };
        let refusal = of(None).reload().unwrap_err().to_string();
        assert!(refusal.contains("'west' was started without --config"), "{refusal}");
        let unreadable: Planner<Numbers> =
            Box::new(|| Err(PlanError::NoPorts { sides: Default::default() }));
        let operation = of(Some(unreadable));
        assert_eq!(operation.reload().unwrap_err().to_string(), "no ports");
        assert_eq!(*operation.plan.lock().unwrap(), plan());
    }
}
