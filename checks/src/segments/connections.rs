//! Flows announced by connection manager messages.

use super::frame::Way;
use longhaul_units::{Psn, Qpn};
use longhaul_wire::mad::{Mad, Message, TransportService};
use std::collections::HashMap;
use std::net::IpAddr;

/// Maximum number of remembered connection requests; above it all are forgotten.
const ASKED_MAX: usize = 1 << 14;

/// Content of a REQ.
#[derive(Clone, Copy)]
struct Asked {
    qpn: Qpn,
    psn: Psn,
    mtu: Option<u32>,
}

/// One direction of a new connection.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    /// Destination of requests.
    pub(super) requests: Way,
    /// Destination of responses.
    pub(super) requester: Qpn,
    pub(super) first_psn: Psn,
    pub(super) mtu: Option<u32>,
    pub(super) ids: (u32, u32),
}

impl Begun {
    pub(super) fn responses(&self) -> Way {
        let Way { source, destination, vlan, .. } = self.requests;
        Way { source: destination, destination: source, vlan, qpn: self.requester }
    }
}

/// The sender of a REQ: both addresses, VLAN, communication id.
type Asker = (IpAddr, IpAddr, u16, u32);

#[derive(Default)]
pub(super) struct Connections {
    asked: HashMap<Asker, Asked>,
}

impl Connections {
    /// Communication ids of the connection that a DREQ ends: the sender's and the receiver's.
    pub(super) fn ended(mad: &Mad) -> Option<(u32, u32)> {
        match Message::read(mad).ok()?.1 {
            Message::Dreq(dreq) => Some((dreq.local_comm_id, dreq.remote_comm_id)),
            _ => None,
        }
    }

    /// The flows of a connection once its REP has arrived: the REQ sender's and the REP sender's.
    pub(super) fn see(&mut self, way: Way, mad: &Mad) -> Option<[Begun; 2]> {
        let Way { source, destination, vlan, .. } = way;
        let (_, message) = Message::read(mad).ok()?;
        match message {
            Message::Req(req) if req.transport == TransportService::Rc => {
                if self.asked.len() >= ASKED_MAX {
                    self.asked.clear();
                }
                let mtu = (1..=5).contains(&req.path_mtu).then(|| 128 << req.path_mtu);
                let asked = Asked { qpn: req.qpn, psn: req.starting_psn, mtu };
                self.asked.insert((source, destination, vlan, req.local_comm_id), asked);
                None
            }
            Message::Rep(rep) => {
                let asked = self.asked.get(&(destination, source, vlan, rep.remote_comm_id))?;
                let ids = (rep.remote_comm_id, rep.local_comm_id);
                let begun = |source, destination, qpn, requester, first_psn| Begun {
                    requests: Way { source, destination, vlan, qpn },
                    requester,
                    first_psn,
                    mtu: asked.mtu,
                    ids,
                };
                // Each message contains the first PSN of the other end.
                Some([
                    begun(destination, source, rep.qpn, asked.qpn, rep.starting_psn),
                    begun(source, destination, asked.qpn, rep.qpn, asked.psn),
                ])
            }
            _ => None,
        }
    }
}
