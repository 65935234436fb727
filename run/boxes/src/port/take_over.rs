//! Ports that another process hands over.

use super::{BoxPort, Opening, PortError, PortName};
use crate::error::Cause;
use longhaul_af_xdp::XdpPort;
use longhaul_netdev::{PacketPort, TapPort};
use longhaul_port::Handover;

impl PortName {
    /// Why the port stays with its process; `None`: it can be handed over.
    pub fn stays(&self) -> Option<String> {
        let why = match self {
            PortName::Dpdk { .. } => {
                "the memory of a DPDK device ends with its process: drain the box and restart it"
            }
            PortName::Memif { .. } => {
                "shared memory belongs to the connection with its peer: drain the box and restart \
                 it, and the peer connects again"
            }
            PortName::Interface(_)
            | PortName::Tap(_)
            | PortName::Xdp(_)
            | PortName::Ethernet { .. } => return None,
        };
        Some(format!("port {self} cannot be handed over: {why}"))
    }

    /// Continues one queue of the port per core, from what another process handed over.
    pub fn take_over_queues(
        &self,
        side: usize,
        opening: Opening,
        handovers: Vec<Handover>,
    ) -> Result<Vec<BoxPort>, PortError> {
        let refused = |error: Cause| PortError::Open { port: self.clone(), error };
        if handovers.len() != opening.count.get() {
            return Err(refused("the running box handed over another number of queues".into()));
        }
        match self {
            PortName::Interface(name) | PortName::Ethernet { interface: name, .. } => {
                let configs = self.socket_configs(name, side, opening);
                let taken = configs.iter().zip(handovers).map(|(config, handover)| {
                    let port = PacketPort::take_over(config, handover);
                    self.around(port.map_err(|e| refused(e.into()))?)
                });
                taken.collect()
            }
            PortName::Xdp(xdp) => {
                let config = xdp.config(self.frame_bytes_max());
                let queues = XdpPort::take_over_queues(&config, handovers);
                let queues = queues.map_err(|e| refused(e.into()))?;
                Ok(queues.into_iter().map(|port| BoxPort::Xdp(Box::new(port))).collect())
            }
            PortName::Tap(name) => {
                let config = self.tap_config(name);
                let taken = handovers.into_iter().map(|handover| {
                    let port = TapPort::take_over(&config, handover);
                    port.map(BoxPort::Tap).map_err(|e| refused(e.into()))
                });
                taken.collect()
            }
            PortName::Memif { .. } | PortName::Dpdk { .. } => {
                Err(refused(self.stays().unwrap_or_default().into()))
            }
        }
    }
}
