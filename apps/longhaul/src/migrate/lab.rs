//! The lab of a migration: one that is up, or one of its own.

use crate::problem::Problem;
use longhaul_boxes::fibre::Ecn;
use longhaul_boxes::quantity::{Distance, Size, probability};
use longhaul_boxes::settings::WanRate;
use longhaul_lab::{Accelerate, HostName, Lab, LabDir, LabName, Lifetime, NetworkChoice, Spec};
use longhaul_migration::Transport;
use longhaul_units::BitRate;

/// The lab, or the fibre of a new one.
#[derive(Debug, clap::Args)]
pub struct Which {
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
    _own: Option<Lab>,
}

impl Which {
    /// The hosts, in a lab that is started if need be.
    pub fn hosts(&self) -> Result<Hosts, Problem> {
        if let Some(name) = &self.lab {
            let dir = LabDir::of(name)?;
            // Asks whether it is up.
            dir.network()?;
            let spec = dir.spec()?;
            return Ok(Hosts { dir, spec, _own: None });
        }
        let spec = self.spec()?;
        let lab = Lab::start(&spec, Lifetime::OfParent)?;
        Ok(Hosts { dir: lab.dir().clone(), spec, _own: Some(lab) })
    }

    fn spec(&self) -> Result<Spec, Problem> {
        Ok(Spec {
            name: format!("migrate-{}", std::process::id()).parse()?,
            hosts: 2,
            distance: self.distance,
            rate: self.rate,
            network: NetworkChoice::Kernel,
            back_to_back: false,
            ipv6: false,
            accelerate: self.accelerate,
            wan_rate: self.wan_rate,
            loss: self.loss,
            loss_burst: None,
            cut_for: None,
            cut_every: None,
            rule: Vec::new(),
            at: Vec::new(),
            queue: Size::from_bytes(16 << 20),
            ecn: Ecn::Off,
            memory: Size::from_bytes(4 << 30),
            seed: self.seed,
            pcap: None,
            pcap_frames: 1000,
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
    pub fn check(&self, transport: Transport) -> Result<(), Problem> {
        if self.spec.back_to_back {
            let cause = "hosts back to back have no fibre, and one process each";
            return Err(Problem::new(cause, "start a lab without --back-to-back"));
        }
        let network = self.dir.network()?;
        if !transport.is_tcp() || network.is_of_hosts() {
            return Ok(());
        }
        let why = network.missing().map(|why| format!(": {why}")).unwrap_or_default();
        let cause = format!("the lab's hosts have no network, so that TCP cannot cross it{why}");
        Err(Problem::new(cause, "use --transport rdma, or a lab with --network kernel"))
    }
}
