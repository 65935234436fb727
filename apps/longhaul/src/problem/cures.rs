//! Remedies of errors: only the program turns errors into sentences.

use super::Problem;
use crate::sim::Failure;
use longhaul_bench::{ReadError, WriteError};
use longhaul_boxes::control::ControlError;
use longhaul_boxes::runtime_dir::RuntimeDirError;
use longhaul_boxes::settings::{KeyFileError, SettingsError};
use longhaul_boxes::{
    CoresError, Error, PathError, PlanError, PortError, PrivilegesError, ReplaceError,
};
use longhaul_campaign::StoreError;
use longhaul_lab::{LabName, LabNameError, NoSuchHost};
use longhaul_measure::{PinError, boxes, rnic};
use longhaul_seal::KeyError;

impl Problem {
    /// The text of an error in a box's journal and replies.
    pub fn phrase(error: &Error) -> String {
        Problem::of(error, of_box(error)).to_string()
    }

    fn of(error: &dyn std::error::Error, cure: Option<String>) -> Self {
        Problem { cause: error.to_string(), cure }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Problem::of(&error, of_box(&error))
    }
}

impl From<longhaul_lab::Error> for Problem {
    fn from(error: longhaul_lab::Error) -> Self {
        Problem::of(&error, of_lab(&error))
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let cure = match &error {
            StoreError::OtherVersion { .. } => "give another --out, or remove them",
            StoreError::NotOurs { .. } | StoreError::Damaged { .. } => "give another --out",
            StoreError::OtherTask { .. } => "submit the job again",
            StoreError::Busy { .. } => "wait for it, or give another --out",
            StoreError::Read(ReadError::Schema { .. })
            | StoreError::Write(WriteError::Read(ReadError::Schema { .. })) => {
                "give another --out, or use the version that wrote it"
            }
            StoreError::Read(_) | StoreError::Write(_) | StoreError::Io { .. } => {
                return Problem::of(&error, None);
            }
        };
        Problem::of(&error, Some(cure.to_owned()))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let is_of_value = matches!(
            error,
            StoreError::OtherVersion { .. }
                | StoreError::NotOurs { .. }
                | StoreError::OtherTask { .. }
        );
        if is_of_value { Failure::Value(error.into()) } else { Failure::Other(error.into()) }
    }
}

impl From<NoSuchHost> for Problem {
    fn from(error: NoSuchHost) -> Self {
        Problem::of(&error, None)
    }
}

impl From<LabNameError> for Problem {
    fn from(error: LabNameError) -> Self {
        Problem::of(&error, None)
    }
}

impl From<PathError> for Problem {
    fn from(error: PathError) -> Self {
        Problem::of(&error, None)
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        Problem::of(&error, of_control(&error))
    }
}

impl From<KeyFileError> for Problem {
    fn from(error: KeyFileError) -> Self {
        Problem::of(&error, of_key_file(&error))
    }
}

impl From<RuntimeDirError> for Problem {
    fn from(error: RuntimeDirError) -> Self {
        Problem::of(&error, of_runtime_dir(&error))
    }
}

impl From<PinError> for Problem {
    fn from(error: PinError) -> Self {
        match error {
            PinError::NoSuchProcessor(core) => {
                Problem::plain(format!("--cores {core}: no processor has that number"))
            }
            PinError::Refused { .. } => {
                Problem::new(error.to_string(), "'nproc' prints the number of allowed processors")
            }
        }
    }
}

impl From<boxes::Error> for Problem {
    fn from(error: boxes::Error) -> Self {
        match error {
            boxes::Error::NoTestpmd => Problem::new(
                format!("--beside testpmd: {error}"),
                "on Debian: apt-get install dpdk-dev librte-net-memif23",
            ),
            _ => Problem::of(&error, None),
        }
    }
}

impl From<rnic::Error> for Problem {
    fn from(error: rnic::Error) -> Self {
        match error {
            rnic::Error::ServedOverRings => Problem::plain(format!("--serve: {error}")),
            _ => Problem::of(&error, None),
        }
    }
}

fn of_box(error: &Error) -> Option<String> {
    let cure = match error {
        Error::Plan(error) => return of_plan(error),
        Error::Settings(error) => return of_settings(error),
        Error::Cores(error) => return of_cores(error),
        Error::Port(error) => return of_port(error),
        Error::Privileges(error) => return of_privileges(error),
        Error::Control(error) | Error::Replace(ReplaceError::Control(error)) => {
            return of_control(error);
        }
        Error::Replace(ReplaceError::NoPredecessor { .. }) => {
            "omit --replace to start one, or name the running one's --name or --control"
        }
        Error::OfPair { error, .. } => return of_box(error),
        Error::NothingChanged { error, .. } => return of_settings(error),
        Error::Health { .. } => "choose another",
        Error::NoFile(_) => "restart it with other options",
        Error::TakesRestart(_) => "restore it, or restart the box",
        Error::NoFlows(_) => {
            "only 'longhaul accelerate' has; an emulated fibre can be stopped at any time"
        }
        Error::Share { .. }
        | Error::Run { .. }
        | Error::Guard(_)
        | Error::Signals(_)
        | Error::Http(_)
        | Error::Replace(_)
        | Error::Refused { .. } => return None,
    };
    Some(cure.to_string())
}

fn of_plan(error: &PlanError) -> Option<String> {
    let cure = match error {
        PlanError::Read(_) | PlanError::File { .. } => return None,
        PlanError::Unpaired { .. } => "they go in pairs",
        PlanError::Several { why, .. } => why,
        PlanError::PcapsLeft(_) => {
            "each recording needs a port on the command line; in a file, write pcap_SIDE = 'FILE' \
             below its [[pair]]"
        }
        PlanError::NoPorts { sides: [one, other] } => {
            return Some(format!(
                "name two, as in --{one} eth1 --{other} eth2, or a file of pairs with --config"
            ));
        }
        PlanError::NoPairs { sides: [one, other], .. } => {
            return Some(format!(
                "add one with {one} = 'eth1' and {other} = 'eth2', or give --{one} and --{other}"
            ));
        }
        PlanError::PortTwice(_) => {
            "a port's frames leave by its partner, so each port belongs to one pair"
        }
        PlanError::NameTwice(_) => "name them with 'name = ...'",
        PlanError::PcapTwice(_) => "give each its own file",
    };
    Some(cure.to_string())
}

fn of_settings(error: &SettingsError) -> Option<String> {
    let cure = match error {
        SettingsError::Box(_)
        | SettingsError::Halves(_)
        | SettingsError::Policy(_)
        | SettingsError::Link(_)
        | SettingsError::OwnAddresses(_)
        | SettingsError::BurstsWithoutLoss
        | SettingsError::InBurstWithoutBursts
        | SettingsError::ReorderDelayWithoutReorder
        | SettingsError::FixedFibre => return None,
        SettingsError::Key(error) => return of_key_file(error),
        SettingsError::ViaWithCores { prefix, .. } => {
            return Some(format!("use --far {prefix} alone: the box then asks for each address"));
        }
        SettingsError::PartOfCore { error, .. } => {
            let first = of_settings(error).map_or_else(String::new, |cure| cure + "; ");
            return Some(first + "give more --memory and --flows, or fewer cores");
        }
        SettingsError::MoreCoresThanDirections(_) => "use --cores 2: one per direction",
        SettingsError::WithoutKey(_) => {
            "this box needs a key of its own: 'longhaul key new FILE' makes one"
        }
        SettingsError::KeyWithoutTransport => "keys encrypt the transport: add --transport",
        SettingsError::KeyWithoutPeer => "name the other box, as in --peer east=PUBLIC_KEY",
        SettingsError::PskOfNobody(_) => "use the name that --peer gives the box",
        SettingsError::ClearWithKeyOptional(_) => {
            "omit one of them: with --key-optional all traffic may cross in cleartext"
        }
        SettingsError::ClearOverlapsFar { .. } => {
            "an address either has a far box that encrypts, or crosses in cleartext"
        }
        SettingsError::FarWithoutTransport => "far boxes belong to the transport: add --transport",
        SettingsError::ReadAheadWithoutTransport => {
            "it needs whole boxes at both sites: add --transport"
        }
        SettingsError::WanRateWithoutTransport => {
            "it is the transport's rate: add --transport, or give the path's rate by --rate"
        }
        SettingsError::FarIsHere { .. } => {
            "name an address behind the box at the other site, such as a host's"
        }
        SettingsError::WindowOverMemory { .. } => "give a smaller --window, or more --memory",
        SettingsError::DelayAndDistance => "omit one of them",
    };
    Some(cure.to_string())
}

fn of_key_file(error: &KeyFileError) -> Option<String> {
    match error {
        KeyFileError::Exposed { path, .. } => Some(format!(
            "run 'chmod 600 {}', or create another key if somebody may have read it",
            path.display()
        )),
        KeyFileError::NoKey { error: KeyError::Preshared, .. } => {
            Some("name it in --psk; 'longhaul key new FILE' makes a private key".to_string())
        }
        KeyFileError::NoKey { error: KeyError::Private, .. } => {
            Some("name it in --key; 'longhaul key psk FILE' makes a pre-shared key".to_string())
        }
        KeyFileError::File { .. }
        | KeyFileError::Unrelated(_)
        | KeyFileError::NoKey { .. }
        | KeyFileError::Random(_) => None,
    }
}

fn of_cores(error: &CoresError) -> Option<String> {
    let cure = match error {
        CoresError::List { .. } | CoresError::Node { .. } => return None,
        CoresError::NodeBeside(_) => "omit one of them, or give a number of cores, as --cores 2",
        CoresError::NoNode(_) => "'lscpu' lists them",
        CoresError::TooFew { .. } => "use fewer, or omit --numa",
    };
    Some(cure.to_string())
}

fn of_port(error: &PortError) -> Option<String> {
    let cure = match error {
        PortError::Open { .. } | PortError::Record { .. } => return None,
        PortError::NoDpdk(_) => {
            "build it with 'apt-get install libdpdk-dev && \
             cargo build --release -p longhaul --features dpdk'"
        }
        PortError::InUse { .. } => "stop that box, or use another interface",
        PortError::OneQueue { .. } => "omit --cores, or name an interface, as eth1",
    };
    Some(cure.to_string())
}

fn of_privileges(error: &PrivilegesError) -> Option<String> {
    match error {
        PrivilegesError::OnlyRoot(_) => Some("omit --user, or start it as root".to_string()),
        PrivilegesError::NoUser(name) => Some(format!(
            "create it with 'useradd --system {name}', choose another --user, or --keep-privileges"
        )),
        PrivilegesError::Path(_)
        | PrivilegesError::LookUp { .. }
        | PrivilegesError::Refused { .. }
        | PrivilegesError::StillThere => None,
    }
}

fn of_control(error: &ControlError) -> Option<String> {
    let cure = match error {
        ControlError::RuntimeDir(error) => return of_runtime_dir(error),
        ControlError::NoName(_) => "give it 1 to 40 letters, digits, - or _",
        ControlError::NoSocket(_) => "choose another --control; the file is left unchanged",
        ControlError::RunsAlready(_) => "stop it, or choose another --name or --control",
        ControlError::Nobody(_) => {
            "start one with 'longhaul accelerate' or 'longhaul emulate', ask as the user who did, \
             or name its --control"
        }
        ControlError::Several(_) => "name one of them",
        ControlError::Ending(_) => "ask again; 'longhaul box health' shows which",
        ControlError::Halfway(_) => "ask again",
        ControlError::OtherVersion { .. } => "restart it",
        ControlError::Path(_)
        | ControlError::Serve(_)
        | ControlError::Thread(_)
        | ControlError::NoAnswer { .. }
        | ControlError::Refused(_) => return None,
    };
    Some(cure.to_string())
}

fn of_runtime_dir(error: &RuntimeDirError) -> Option<String> {
    match error {
        RuntimeDirError::Path(_) => {
            Some("set XDG_RUNTIME_DIR to a directory of yours, or unset it".to_string())
        }
        RuntimeDirError::NotPrivate(_) => Some(
            "remove it, or set XDG_RUNTIME_DIR to a directory of yours with a short path"
                .to_string(),
        ),
    }
}

fn of_lab(error: &longhaul_lab::Error) -> Option<String> {
    use longhaul_lab::Error;
    match error {
        Error::RuntimeDir(error) => of_runtime_dir(error),
        Error::UpAlready(name) => {
            Some(format!("stop it with 'longhaul lab down --name {name}' or choose another --name"))
        }
        Error::NotUp(name) => {
            let is_default = *name == LabName::default();
            let option = if is_default { String::new() } else { format!(" --name {name}") };
            Some(format!("start it with 'longhaul lab up{option} --distance 1000km'"))
        }
        Error::OtherSpec { .. } => Some("restart the lab".to_string()),
        Error::WanRateWithoutTransport => {
            Some("it is the transport's rate: add --accelerate transport".to_string())
        }
        Error::NoNamespaces { .. } => Some("restart the lab, as the user who uses it".to_string()),
        Error::NoAnswer { log, .. } => Some(format!("see {}", log.display())),
        Error::OtherVersion { .. } => Some("restart it".to_string()),
        Error::Path(_)
        | Error::FindProgram(_)
        | Error::Start(_)
        | Error::Describe(_)
        | Error::EndedEarly(_)
        | Error::Refused(_)
        | Error::ReadSpec(_)
        | Error::NoSpec(_)
        | Error::Link(_)
        | Error::Box(_)
        | Error::Switch(_)
        | Error::Signals(_)
        | Error::OfferPort { .. }
        | Error::Record { .. }
        | Error::Run(_)
        | Error::ControlThread(_)
        | Error::Stderr(_)
        | Error::DoesNotEnd { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_followed_by_its_cure_wherever_it_lies() {
        let error = Error::OfPair {
            pair: "one".to_string(),
            error: Box::new(SettingsError::KeyWithoutPeer.into()),
        };
        let told = "pair one: --key without --peer; name the other box, as in --peer \
                    east=PUBLIC_KEY";
        assert_eq!(Problem::phrase(&error), told);
        assert_eq!(Problem::from(error).to_string(), told);
        let count = std::num::NonZeroUsize::MIN;
        let error = Box::new(SettingsError::WanRateWithoutTransport);
        let told = Problem::phrase(&SettingsError::PartOfCore { count, error }.into());
        assert!(told.ends_with("by --rate; give more --memory and --flows, or fewer cores"));
    }

    #[test]
    fn a_benchs_problem_names_its_option() {
        assert_eq!(
            Problem::from(PinError::NoSuchProcessor(99_999)).to_string(),
            "--cores 99999: no processor has that number"
        );
        assert_eq!(
            Problem::from(boxes::Error::NoTestpmd).to_string(),
            "--beside testpmd: dpdk-testpmd is not installed; on Debian: apt-get install dpdk-dev \
             librte-net-memif23"
        );
        let told = "--serve: over rings there is one process";
        assert_eq!(Problem::from(rnic::Error::ServedOverRings).to_string(), told);
    }

    #[test]
    fn what_a_user_can_do_follows_the_cause() {
        let sides = || ["lan", "wan"].map(str::to_string);
        let port: longhaul_boxes::PortName = "tap:lh0".parse().unwrap();
        let why = "a TAP device has one queue here";
        let count = std::num::NonZeroUsize::new(2).unwrap();
        for (error, told) in [
            (
                Error::from(ControlError::NoSocket("/x".into())),
                "/x exists and is not a socket; choose another --control; the file is left \
                 unchanged",
            ),
            (
                ControlError::RunsAlready("west".to_string()).into(),
                "a box named 'west' is already running; stop it, or choose another --name or \
                 --control",
            ),
            (
                PlanError::NoPorts { sides: sides() }.into(),
                "no ports; name two, as in --lan eth1 --wan eth2, or a file of pairs with --config",
            ),
            (
                PlanError::NoPairs { path: "x.toml".into(), sides: sides() }.into(),
                "x.toml has no [[pair]]; add one with lan = 'eth1' and wan = 'eth2', or give --lan \
                 and --wan",
            ),
            (
                PlanError::Unpaired { sides: sides(), counts: [2, 1] }.into(),
                "--lan is given twice and --wan once; they go in pairs",
            ),
            (
                PlanError::Several { sides: sides(), count: 2, why: "ports go in pairs".into() }
                    .into(),
                "--lan is given once and --wan twice; ports go in pairs",
            ),
            (
                PortError::OneQueue { count, port, why }.into(),
                "2 cores cannot share port tap:lh0: a TAP device has one queue here; omit --cores, \
                 or name an interface, as eth1",
            ),
            (
                PrivilegesError::NoUser("x".to_string()).into(),
                "there is no user 'x'; create it with 'useradd --system x', choose another --user, \
                 or --keep-privileges",
            ),
        ] {
            assert_eq!(Problem::phrase(&error), told);
        }
    }
}
