//! Remedies of errors: only the program turns errors into sentences.

use super::Problem;
use longhaul_boxes::control::ControlError;
use longhaul_boxes::runtime_dir::RuntimeDirError;
use longhaul_boxes::settings::{KeyFileError, SettingsError};
use longhaul_boxes::{CoresError, Error, PathError, PlanError, PortError, PrivilegesError};
use longhaul_lab::{LabName, LabNameError, NoSuchHost};

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

fn of_box(error: &Error) -> Option<String> {
    let cure = match error {
        Error::Plan(error) => return of_plan(error),
        Error::Settings(error) => return of_settings(error),
        Error::Cores(error) => return of_cores(error),
        Error::Port(error) => return of_port(error),
        Error::Privileges(error) => return of_privileges(error),
        Error::Control(error) => return of_control(error),
        Error::OfPair { error, .. } => return of_box(error),
        Error::NothingChanged { error, .. } => return of_settings(error),
        Error::Health { .. } => "choose another",
        Error::NoFile(_) => "restart it with other options",
        Error::TakesRestart(_) => "put it back, or restart the box",
        Error::NoFlows(_) => {
            "only 'longhaul accelerate' has; an emulated fibre can be ended at any time"
        }
        Error::Share { .. }
        | Error::Run { .. }
        | Error::Signals(_)
        | Error::Http(_)
        | Error::Refused { .. } => return None,
    };
    Some(cure.to_string())
}

fn of_plan(error: &PlanError) -> Option<String> {
    let cure = match error {
        PlanError::Read(_) | PlanError::Syntax { .. } | PlanError::File { .. } => return None,
        PlanError::Unpaired { .. } => "they go in pairs",
        PlanError::Several { why, .. } => why,
        PlanError::PcapsLeft(_) => {
            "each recording belongs to a port of the command line; a file's pairs name theirs"
        }
        PlanError::NoPorts { sides: [one, other] } => {
            return Some(format!(
                "name two, as in --{one} eth1 --{other} eth2, or a file of pairs with --config"
            ));
        }
        PlanError::PortTwice(_) => {
            "what comes in by a port leaves by its partner, so that each belongs to one pair"
        }
        PlanError::NameTwice(_) => "name them with 'name = ...'",
        PlanError::PcapTwice(_) => "give each its file",
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
        | SettingsError::FixedFibre => return None,
        SettingsError::Key(error) => return of_key_file(error),
        SettingsError::ViaWithCores { prefix, .. } => {
            return Some(format!("say --far {prefix}: each address is then asked for by itself"));
        }
        SettingsError::PartOfCore { error, .. } => {
            let first = of_settings(error).map_or_else(String::new, |cure| cure + "; ");
            return Some(first + "give more --memory and --flows, or fewer cores");
        }
        SettingsError::MoreCoresThanDirections(_) => "say --cores 2: each direction has one",
        SettingsError::WithoutKey(_) => {
            "this box needs a key of its own: 'longhaul key new FILE' makes one"
        }
        SettingsError::KeyWithoutTransport => {
            "keys are for what the boxes send each other: add --transport"
        }
        SettingsError::KeyWithoutPeer => "say whom to talk to, as in --peer east=PUBLIC_KEY",
        SettingsError::PskOfNobody(_) => "name the peer as in its --peer",
        SettingsError::ClearWithKeyOptional(_) => {
            "drop one of them: with --key-optional everything may cross in the clear"
        }
        SettingsError::ClearOverlapsFar { .. } => {
            "traffic either has a far box that encrypts it, or crosses in the clear"
        }
        SettingsError::FarWithoutTransport => {
            "far boxes are for the transport between boxes: add --transport"
        }
        SettingsError::ReadAheadWithoutTransport => {
            "it takes a whole box at both sites: add --transport"
        }
        SettingsError::WanRateWithoutTransport => {
            "it is the transport's: add --transport, or give the path's rate by --rate"
        }
        SettingsError::FarIsHere { .. } => {
            "name an address behind the box at the other site, of a host there say"
        }
        SettingsError::DelayAndDistance => "leave one of them out",
    };
    Some(cure.to_string())
}

fn of_key_file(error: &KeyFileError) -> Option<String> {
    match error {
        KeyFileError::Exposed { path, .. } => Some(format!(
            "'chmod 600 {}', or make another if somebody may have read it",
            path.display()
        )),
        KeyFileError::File { .. } | KeyFileError::NoKey { .. } | KeyFileError::Random(_) => None,
    }
}

fn of_cores(error: &CoresError) -> Option<String> {
    let cure = match error {
        CoresError::List { .. } | CoresError::Node { .. } => return None,
        CoresError::NodeBeside(_) => "leave one of them out, or say how many cores, as --cores 2",
        CoresError::NoNode(_) => "'lscpu' shows which there are",
        CoresError::TooFew { .. } => "ask for fewer, or leave --numa out",
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
        PortError::OneQueue { .. } => "leave --cores out, or name an interface, as eth1",
    };
    Some(cure.to_string())
}

fn of_privileges(error: &PrivilegesError) -> Option<String> {
    match error {
        PrivilegesError::OnlyRoot(_) => Some("leave --user out, or start it as root".to_string()),
        PrivilegesError::NoUser(name) => Some(format!(
            "make it with 'useradd --system {name}', choose another --user, or --keep-privileges"
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
        ControlError::NoSocket(_) => "it stays; choose another --control",
        ControlError::RunsAlready(_) => "end it, or choose another --name or --control",
        ControlError::Nobody(_) => {
            "start one with 'longhaul accelerate' or 'longhaul emulate', ask as the user who did, \
             or name its --control"
        }
        ControlError::Several(_) => "name one of them",
        ControlError::Ending(_) => "ask again; 'longhaul box health' tells which",
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
        RuntimeDirError::Path(_) => None,
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
        Error::HostIsFull { .. } => {
            Some("wait for one to end, or start a second lab with --name".to_string())
        }
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
        let told = "pair one: --key without --peer; \
                    say whom to talk to, as in --peer east=PUBLIC_KEY";
        assert_eq!(Problem::phrase(&error), told);
        assert_eq!(Problem::from(error).to_string(), told);
        let count = std::num::NonZeroUsize::MIN;
        let error = Box::new(SettingsError::WanRateWithoutTransport);
        let told = Problem::phrase(&SettingsError::PartOfCore { count, error }.into());
        assert!(told.ends_with("by --rate; give more --memory and --flows, or fewer cores"));
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
                "/x is there and is no socket; it stays; choose another --control",
            ),
            (
                ControlError::RunsAlready("west".to_string()).into(),
                "a box called 'west' runs already; end it, or choose another --name or --control",
            ),
            (
                PlanError::NoPorts { sides: sides() }.into(),
                "no ports; name two, as in --lan eth1 --wan eth2, or a file of pairs with --config",
            ),
            (
                PlanError::Unpaired { sides: sides(), counts: [2, 1] }.into(),
                "--lan is given 2 times and --wan 1 times; they go in pairs",
            ),
            (
                PlanError::Several { sides: sides(), count: 2, why: "ports go in pairs".into() }
                    .into(),
                "--lan is given once and --wan 2 times; ports go in pairs",
            ),
            (
                PortError::OneQueue { count, port, why }.into(),
                "2 cores cannot share port tap:lh0: a TAP device has one queue here; \
                 leave --cores out, or name an interface, as eth1",
            ),
            (
                PrivilegesError::NoUser("x".to_string()).into(),
                "there is no user 'x'; make it with 'useradd --system x', choose another --user, \
                 or --keep-privileges",
            ),
        ] {
            assert_eq!(Problem::phrase(&error), told);
        }
    }
}
