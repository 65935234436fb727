//! A device with one connected queue pair, and the other process.

use crate::{Fault, ProcessRole};
use longhaul_checks::rendezvous::Rendezvous;
use longhaul_rdma::{
    CompletionQueue, Device, Endpoint, MemoryRegion, PathSettings, ProtectionDomain, QueuePair,
    QueuePairSettings,
};
use longhaul_units::{Psn, Qpn, RKey};
use serde_json::{Map, Value, json};
use std::net::TcpListener;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(240);
/// PSNs begin shortly before the wrap.
const PSN_FIRST: u32 = 0xff_ff00;

/// This process's device.
pub struct Session {
    pub device: Device,
    pub pd: ProtectionDomain,
    pub other: Rendezvous,
}

/// A connected queue pair with its own completion queues.
pub struct Pair {
    pub qp: QueuePair,
    pub send_cq: CompletionQueue,
    pub recv_cq: CompletionQueue,
    pub remote: Remote,
}

/// Memory that the other process offers.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    pub address: u64,
    pub rkey: RKey,
}

/// Meets the other process; the first one waits.
fn meet(ProcessRole { server, port, meet }: ProcessRole) -> Result<Rendezvous, Fault> {
    if !server {
        return Rendezvous::at(&format!("{meet}:{port}"), PATIENCE);
    }
    let listener = TcpListener::bind((meet, port))?;
    Rendezvous::over(listener.accept()?.0, PATIENCE)
}

impl Session {
    pub fn open(place: ProcessRole) -> Result<Self, Fault> {
        let device = Device::from_env()?;
        let pd = device.alloc_pd()?;
        Ok(Session { device, pd, other: meet(place)? })
    }

    /// Connects a queue pair over `path` and exchanges `offered`, which peers may access. `prepare`
    /// posts the first receives.
    pub fn connect(
        &mut self,
        path: &PathSettings,
        offered: &MemoryRegion,
        prepare: impl FnOnce(&QueuePair) -> Result<(), Fault>,
    ) -> Result<Pair, Fault> {
        let settings =
            QueuePairSettings { send_depth: 512, recv_depth: 1024, ..QueuePairSettings::default() };
        let send_cq = self.device.create_cq(settings.send_depth)?;
        let recv_cq = self.device.create_cq(settings.recv_depth)?;
        let qp = self.device.create_qp(&self.pd, &send_cq, &recv_cq, &settings)?;
        qp.initialize(path)?;
        prepare(&qp)?;
        let psn = Psn::new(PSN_FIRST);
        let ours = json!({
            "ip": qp.endpoint(psn).ip,
            "qpn": qp.qpn().get(),
            "address": offered.address(0),
            "rkey": offered.rkey().0,
        });
        let theirs = self.other.swap(&ours)?;
        let number = |name: &str| theirs[name].as_u64().ok_or(format!("no {name} in {theirs}"));
        let ip = theirs["ip"].as_str().unwrap_or_default().parse()?;
        let peer = Endpoint { ip, qpn: Qpn::new(number("qpn")? as u32), psn };
        qp.connect(psn, &peer, path)?;
        self.other.agree("connected")?;
        let remote = Remote { address: number("address")?, rkey: RKey(number("rkey")? as u32) };
        Ok(Pair { qp, send_cq, recv_cq, remote })
    }

    /// The device's counters by name.
    pub fn counters(&self) -> Result<Value, Fault> {
        let counters: Map<String, Value> = self.device.engine().with_quietly(|rnic| {
            rnic.counters()
                .iter()
                .map(|(counter, n)| (counter.name().to_owned(), n.into()))
                .collect()
        })?;
        Ok(counters.into())
    }
}
