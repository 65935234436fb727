//! Clients on the hosts a, c, e and so on of a lab, servers on b, d, f and so on.

use super::{Addresses, End, Executor, Made, Refusal, Side, os_words};
use crate::grid::{Settings, Value};
use crate::programs::Launch;
use crate::sample::Device;
use crate::topology::Topology;
use clap::{CommandFactory as _, Parser};
use longhaul_bench::{Point as Place, Scalar};
use longhaul_lab::{HostName, Lab, LabDir, LabName, Lifetime, Spec};
use std::ffi::OsString;

/// Options of a lab that are no settings of a path.
const NO_SETTINGS: [&str; 3] = ["name", "help", "hosts"];

/// The options of 'longhaul lab up'.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Options {
    #[command(flatten)]
    spec: Spec,
}

/// Counters of a host's device, below the directory of its files.
const COUNTERS_OF_DEVICE: &str = "devices/virtual/infiniband/longhaul0/ports/1/counters";
/// The fill of the send queues, likewise.
const FILL_OF_DEVICE: &str = "send_queue_fill";

/// A place in a lab.
type Host<'a> = (&'a LabDir, HostName);

/// Runs programs on the hosts of a lab, one lab for each path.
pub struct InLab<F> {
    name: LabName,
    command: F,
    running: Option<(Settings, Spec, Lab)>,
}

impl<F: Fn(Host<'_>, &[OsString]) -> Made> InLab<F> {
    /// An executor in labs called `name`, whose hosts' commands `command` makes.
    pub fn new(name: LabName, command: F) -> Self {
        InLab { name, command, running: None }
    }

    fn running(&self) -> Result<&(Settings, Spec, Lab), Refusal> {
        self.running.as_ref().ok_or_else(|| Refusal::new("no lab is up"))
    }
}

/// The spec of a lab with these settings.
fn spec(path: &Settings) -> Result<Spec, Refusal> {
    let Topology { clients, servers } = Topology::of(path)?;
    // Hosts of the two sites alternate.
    let hosts = (2 * clients - 1).max(2 * servers);
    let hosts = (hosts > 2).then(|| format!("--hosts={hosts}"));
    let settings = path.iter().filter(|(key, _)| !Topology::takes(key));
    let settings = settings.filter_map(|(key, value)| {
        let option = key.replace('_', "-");
        match &value.scalar {
            Scalar::Bool(true) => Some(format!("--{option}")),
            Scalar::Bool(false) => None,
            _ => Some(format!("--{option}={}", value.text)),
        }
    });
    let parsed = Options::try_parse_from(hosts.into_iter().chain(settings)).map_err(|error| {
        let text = error.to_string();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let lines = lines.take_while(|line| !line.starts_with("Usage:"));
        let lines: Vec<_> = lines.filter(|line| !line.starts_with("For more info")).collect();
        Refusal::new(lines.join("; ").trim_start_matches("error: "))
    })?;
    Ok(parsed.spec)
}

/// The host at one end.
fn host(end: End) -> HostName {
    match end.side {
        Side::Client => HostName::of_index(2 * end.number),
        Side::Server => HostName::of_index(2 * end.number + 1),
    }
}

/// The parameter of results that a setting is: quantities as numbers in the unit of their name.
fn parameter(key: &str, value: &Value, spec: &Spec) -> (String, Scalar) {
    match key {
        "distance" => ("distance_km".to_owned(), spec.distance.km().into()),
        "rate" => ("rate_bps".to_owned(), spec.rate.as_bps().into()),
        "loss" => ("loss".to_owned(), spec.loss.into()),
        "queue" => ("queue_bytes".to_owned(), spec.queue.bytes().into()),
        "memory" => ("memory_bytes".to_owned(), spec.memory.bytes().into()),
        _ => (key.to_owned(), value.scalar.clone()),
    }
}

impl<F: Fn(Host<'_>, &[OsString]) -> Made> Executor for InLab<F> {
    fn takes(&self, key: &str) -> bool {
        let option = key.replace('_', "-");
        let command = Options::command();
        let is_known = command.get_arguments().any(|known| known.get_long() == Some(&option));
        (is_known && !NO_SETTINGS.contains(&key)) || Topology::takes(key)
    }

    fn parameters(&self, path: &Settings) -> Result<Place, Refusal> {
        let spec = spec(path)?;
        let parameters = path.iter().map(|(key, value)| parameter(key, value, &spec));
        Ok(parameters.fold(Place::new(), |place, (key, value)| place.with(&key, value)))
    }

    fn enter(&mut self, path: &Settings) -> Result<bool, Refusal> {
        if self.running.as_ref().is_some_and(|(known, ..)| known == path) {
            return Ok(false);
        }
        // Before the next lab takes its name.
        self.leave();
        let spec = Spec { name: self.name.clone(), ..spec(path)? };
        let lab = Lab::start(&spec, Lifetime::OfParentAlone)
            .map_err(|error| Refusal::new(format!("the lab did not start: {error}")))?;
        self.running = Some((path.clone(), spec, lab));
        Ok(true)
    }

    fn leave(&mut self) -> Option<String> {
        self.running.take().and_then(|(_, _, lab)| lab.end())
    }

    fn addresses(&self, server: usize) -> Result<Addresses, Refusal> {
        let (_, spec, lab) = self.running()?;
        let host = host(End { side: Side::Server, number: server });
        let network = lab.dir().network().map_err(Refusal::new)?;
        let off_path = (!network.is_of_hosts()).then(|| {
            network.missing().unwrap_or("the lab is one without networks of its hosts").to_owned()
        });
        Ok(Addresses {
            rdma: spec.device_addresses(host)[0].to_string(),
            tcp: lab.dir().address_for_tcp(host).map_err(Refusal::new)?.to_string(),
            off_path,
        })
    }

    fn host(&self, end: End) -> Option<String> {
        Some(host(end).to_string())
    }

    fn devices(&self) -> Vec<Device> {
        let Some((_, spec, lab)) = &self.running else { return Vec::new() };
        let hosts = (0..usize::from(spec.hosts)).map(HostName::of_index);
        let device = |host: HostName| Device {
            name: host.to_string(),
            counters: lab.dir().counters(host).join(COUNTERS_OF_DEVICE),
            fill: Some(lab.dir().counters(host).join(FILL_OF_DEVICE)),
        };
        hosts.map(device).collect()
    }

    fn launch(&self, end: End, name: String, words: &[String]) -> Result<Launch, Refusal> {
        let (_, _, lab) = self.running()?;
        let command = (self.command)((lab.dir(), host(end)), &os_words(words));
        Ok(Launch::here(name, command.map_err(Refusal::new)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(settings: &[(&str, &str, Scalar)]) -> Settings {
        let value =
            |text: &str, scalar: &Scalar| Value { text: text.to_owned(), scalar: scalar.clone() };
        settings
            .iter()
            .map(|(key, text, scalar)| ((*key).to_owned(), value(text, scalar)))
            .collect()
    }

    #[test]
    fn settings_are_the_options_of_a_lab() {
        let lab = InLab::new("x".parse().unwrap(), |_, _| Err("none".into()));
        for key in ["distance", "loss", "accelerate", "rate", "wan_rate", "ipv6", "cut_for"] {
            assert!(lab.takes(key), "{key}");
        }
        for key in ["name", "hosts", "help", "message_bytes", "qps"] {
            assert!(!lab.takes(key), "{key}");
        }
        let place = lab.parameters(&path(&[
            ("distance", "100km", "100km".into()),
            ("loss", "0.001", 1e-3.into()),
            ("accelerate", "both", "both".into()),
            ("ipv6", "true", true.into()),
        ]));
        let expected = Place::new().with("distance_km", 100.0).with("loss", 1e-3);
        assert_eq!(place.unwrap(), expected.with("accelerate", "both").with("ipv6", true));
    }

    #[test]
    fn a_topology_decides_the_number_of_hosts() {
        let hosts = |clients: u32, servers: u32| {
            let [clients, servers] = [clients, servers].map(|n| (n.to_string(), Scalar::from(n)));
            let settings =
                [("clients", &*clients.0, clients.1), ("servers", &*servers.0, servers.1)];
            spec(&path(&settings)).map(|spec| spec.hosts)
        };
        assert_eq!((hosts(1, 1).unwrap(), hosts(4, 1).unwrap(), hosts(1, 4).unwrap()), (2, 7, 8));
        assert_eq!(hosts(13, 13).unwrap(), 26);
        assert!(hosts(14, 1).unwrap_err().to_string().contains("--hosts"));
        let end = |side, number| host(End { side, number }).to_string();
        assert_eq!((end(Side::Client, 3), end(Side::Server, 1)), ("g".into(), "d".into()));
    }

    #[test]
    fn what_a_lab_cannot_be_is_refused_in_one_line() {
        for (key, text, part) in [
            ("distance", "5", "--distance"),
            ("loss", "2", "--loss"),
            ("accelerate", "sideways", "possible values: none, both, transport, read-ahead, a, b"),
            ("cut_every", "1s", "--cut-for"),
        ] {
            let refused = spec(&path(&[(key, text, text.into())])).unwrap_err().to_string();
            assert!(refused.contains(part) && !refused.contains('\n'), "{refused}");
        }
    }
}
