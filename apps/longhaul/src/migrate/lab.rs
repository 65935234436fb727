//! The lab of a migration, one that is up or one of its own, and the TCP of its hosts.

use crate::exec;
use crate::problem::Problem;
use longhaul_boxes::quantity::{Distance, probability};
use longhaul_boxes::settings::WanRate;
use longhaul_lab::{Accelerate, HostName, INTERFACE, Lab, LabDir, LabName, Lifetime, Spec};
use longhaul_migration::Transport;
use longhaul_units::BitRate;
use std::ffi::OsString;
use std::net::Ipv4Addr;

/// The lab, or the fibre of a new one.
#[derive(Debug, clap::Args)]
pub struct LabOptions {
    /// Use hosts a and b of this lab, which is up [default: a new one for each run]
    #[arg(long, value_name = "NAME")]
    #[arg(conflicts_with_all = ["distance", "rate", "loss", "accelerate", "wan_rate"])]
    lab: Option<LabName>,
    /// Length of the fibre between the hosts
    #[arg(long, value_name = "DISTANCE", default_value = "0km")]
    distance: Distance,
    /// Rate of the hosts' ports and of the fibre
    #[arg(long, value_name = "RATE", default_value = "10G")]
    rate: BitRate,
    /// Probability that the fibre loses a frame
    #[arg(long, value_name = "PROBABILITY", default_value = "0", value_parser = probability)]
    loss: f64,
    /// Put accelerators into the wire, as 'lab up --accelerate' does [default: none]
    #[arg(
        long,
        value_enum,
        value_name = "none|both|transport|a|b",
        hide_possible_values = true,
        hide_default_value = true,
        num_args = 0..=1,
        default_value = "none",
        default_missing_value = "both"
    )]
    accelerate: Accelerate,
    /// Rate of the transport, as in 'lab up --wan-rate'
    #[arg(long, value_name = "adaptive|port|RATE")]
    wan_rate: Option<WanRate>,
    /// Seed of the lab's random values
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Hosts a and b.
pub struct Hosts {
    dir: LabDir,
    spec: Spec,
    /// Ends with the migration.
    own: Option<Lab>,
}

impl LabOptions {
    /// The hosts, in a lab that is started if need be.
    pub fn hosts(&self) -> Result<Hosts, Problem> {
        if let Some(name) = &self.lab {
            let dir = LabDir::of(name)?;
            // Asks whether it is up.
            dir.network()?;
            let spec = dir.spec()?;
            return Ok(Hosts { dir, spec, own: None });
        }
        let spec = self.spec()?;
        let lab = Lab::start(&spec, Lifetime::OfParentAlone)?;
        Ok(Hosts { dir: lab.dir().clone(), spec, own: Some(lab) })
    }

    fn spec(&self) -> Result<Spec, Problem> {
        let name = format!("migrate-{}", std::process::id()).parse()?;
        Ok(Spec {
            accelerate: self.accelerate,
            wan_rate: self.wan_rate,
            loss: self.loss,
            seed: self.seed,
            ..Spec::of_two(name, self.distance, self.rate)
        })
    }
}

/// Where the guest is, and where it goes.
pub const SOURCE: HostName = HostName::A;
pub const DESTINATION: HostName = HostName::B;

impl Hosts {
    /// The lab's directory.
    pub fn dir(&self) -> &LabDir {
        &self.dir
    }

    /// The lab's settings.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Fails where `transport` would not cross the fibre.
    pub fn check(&self, transport: Transport, copies_disk: bool) -> Result<(), Problem> {
        if self.spec.back_to_back {
            let cause = "back-to-back hosts have no fibre and run one process each";
            return Err(Problem::new(cause, "start a lab without --back-to-back"));
        }
        let network = self.dir.network()?;
        let (what, instead) = match (transport.is_tcp(), copies_disk) {
            (true, _) => ("TCP", "use --transport rdma"),
            (false, true) => ("the copy of the disk", "leave out --disk"),
            (false, false) => return Ok(()),
        };
        if network.is_of_hosts() {
            return Ok(());
        }
        let why = network.missing().map(|why| format!(": {why}")).unwrap_or_default();
        let cause = format!("the hosts have no IP network for {what}{why}");
        Err(Problem::new(cause, format!("{instead}, or a lab with --network kernel")))
    }

    /// Stops a lab of its own, and reports what that logged.
    pub fn end(self) {
        if let Some(log) = self.own.and_then(Lab::end) {
            eprintln!("longhaul: the lab logged: {log}");
        }
    }

    /// Finds out the TCP congestion control of the source's host, or sets it.
    pub fn congestion(&self, wanted: Option<&str>) -> Result<Congestion<'_>, Problem> {
        let before = self.of_route()?;
        let Some(wanted) = wanted else {
            let name = match before {
                Some(name) => name,
                None => self.read(&["cat", "/proc/sys/net/ipv4/tcp_congestion_control"])?,
            };
            return Ok(Congestion { hosts: self, name, before: None });
        };
        let refused = |why: &str| {
            let cause =
                format!("host {SOURCE} cannot use TCP congestion control '{wanted}': {why}");
            Problem::new(cause, format!("load it, as root: modprobe tcp_{wanted}"))
        };
        self.set_route(Some(wanted))?.map_err(|why| refused(&why))?;
        let before = self.own.is_none().then_some(before);
        let congestion = Congestion { hosts: self, name: wanted.to_owned(), before };
        match self.of_route()? {
            Some(set) if set == wanted => Ok(congestion),
            set => {
                let set = set.as_deref().unwrap_or("none");
                Err(refused(&format!("the route then has {set}")))
            }
        }
    }

    /// The congestion control that the route over the fibre names.
    fn of_route(&self) -> Result<Option<String>, Problem> {
        let route = self.read(&["ip", "route", "show", &network(), "dev", INTERFACE])?;
        Ok(congctl(&route).map(str::to_owned))
    }

    /// Sets it in the route: namespaces may set the default only to what the machine allows all
    /// users, and a route may name any that is loaded. The inner error is what `ip` says.
    fn set_route(&self, name: Option<&str>) -> Result<Result<String, String>, Problem> {
        let (network, ip) = (network(), SOURCE.ip().to_string());
        let mut words = vec!["ip", "route", "change", &network, "dev", INTERFACE];
        words.extend(["proto", "kernel", "scope", "link", "src", &ip]);
        if let Some(name) = name {
            words.extend(["congctl", name]);
        }
        self.on_source(&words)
    }

    fn read(&self, words: &[&str]) -> Result<String, Problem> {
        self.on_source(words)?.map_err(|why| {
            Problem::plain(format!("host {SOURCE}: '{}' failed: {why}", words.join(" ")))
        })
    }

    /// What a program on the source's host prints, or the error that it prints.
    fn on_source(&self, words: &[&str]) -> Result<Result<String, String>, Problem> {
        let program: Vec<OsString> = words.iter().map(OsString::from).collect();
        let done = exec::command(&self.dir, SOURCE, &program)?.output().map_err(|e| {
            Problem::plain(format!("cannot run {} on host {SOURCE}: {e}", words[0]))
        })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().replace('\n', "; ");
        Ok(match done.status.success() {
            true => Ok(text(&done.stdout)),
            false => Err(text(&done.stderr)),
        })
    }
}

/// The hosts' IP network.
fn network() -> String {
    format!("{}/24", Ipv4Addr::from(SOURCE.ip().to_bits() & !0xff))
}

/// The congestion control in a line of `ip route`.
fn congctl(route: &str) -> Option<&str> {
    let mut words = route.split_whitespace().skip_while(|word| *word != "congctl").skip(1);
    words.find(|word| *word != "lock")
}

/// The TCP congestion control of the source's host. In a lab that is not of its own, a route that
/// was changed is as before once this is dropped.
pub struct Congestion<'a> {
    hosts: &'a Hosts,
    name: String,
    before: Option<Option<String>>,
}

impl Congestion<'_> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Congestion<'_> {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The lab may be down by now.
            let _ = self.hosts.set_route(before.as_deref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_names_its_congestion_control() {
        let route = "10.77.0.0/24 proto kernel scope link src 10.77.0.1";
        assert_eq!(congctl(route), None);
        assert_eq!(congctl(&format!("{route} congctl bbr")), Some("bbr"));
        assert_eq!(congctl(&format!("{route} congctl lock cubic mtu 1500")), Some("cubic"));
        assert_eq!(network(), "10.77.0.0/24");
    }
}
