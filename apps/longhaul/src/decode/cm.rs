//! Messages of the connection manager in a packet to QP1.

use super::model::{Hex32, Hex64};
use longhaul_units::Qpn;
use longhaul_wire::mad::{Ece, Mad, Message, RdmaCmHeader, ServiceId, SidrStatus};
use longhaul_wire::{Opcode, Packet};
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;

/// Fields of a message; absent ones are omitted.
#[derive(Debug, Default, Serialize)]
pub struct Cm {
    /// REQ, REP, …
    pub message: &'static str,
    pub transaction: Option<Hex64>,
    /// The sender's id of the connection.
    pub local_id: Option<Hex32>,
    /// The receiver's id.
    pub remote_id: Option<Hex32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting_psn: Option<u32>,
    /// Path MTU in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub responder_resources: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator_depth: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rnr_retry_count: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qkey: Option<Hex32>,
    /// Vendor and options of enhanced connection establishment, if the message has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ece: Option<(Hex32, Hex32)>,
    /// Source address and port of the RDMA connection manager's header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<(IpAddr, u16)>,
    /// Reason code of a rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<u16>,
    /// Meaning of a rejection or failed resolution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}

impl Cm {
    /// `None` if the packet is not a message of the connection manager.
    pub fn read(packet: &Packet<'_>, payload: &[u8]) -> Option<Cm> {
        if packet.opcode() != Opcode::UD_SEND_ONLY || packet.dest_qp() != Qpn::GSI {
            return None;
        }
        let mad: &Mad = payload.try_into().ok()?;
        let (header, message) = Message::read(mad).ok()?;
        let ece = Ece::read(mad, message.attribute()).filter(|ece| *ece != Ece::NONE);
        let mut cm = Cm {
            ece: ece.map(|ece| (Hex32(ece.vendor_id), Hex32(ece.options))),
            message: message.attribute().name(),
            transaction: Some(Hex64(header.transaction_id)),
            local_id: Some(Hex32(message.local_comm_id())).filter(|id| id.0 != 0),
            remote_id: message.remote_comm_id().map(Hex32),
            ..Cm::default()
        };
        match message {
            Message::Req(m) => {
                cm.set_service(m.service_id, m.private_data);
                cm.qp = Some(m.qpn.get());
                cm.starting_psn = Some(m.starting_psn.get());
                cm.path_mtu = (1..=5).contains(&m.path_mtu).then(|| 128 << m.path_mtu);
                cm.responder_resources = Some(m.responder_resources);
                cm.initiator_depth = Some(m.initiator_depth);
                cm.retry_count = Some(m.retry_count);
                cm.rnr_retry_count = Some(m.rnr_retry_count);
            }
            Message::Rep(m) => {
                cm.qp = Some(m.qpn.get());
                cm.starting_psn = Some(m.starting_psn.get());
                cm.responder_resources = Some(m.responder_resources);
                cm.initiator_depth = Some(m.initiator_depth);
                cm.rnr_retry_count = Some(m.rnr_retry_count);
            }
            Message::Rej(m) => {
                cm.reason = Some(m.reason.0);
                cm.because = Some(m.reason.text().to_owned());
            }
            Message::Dreq(m) => cm.qp = Some(m.remote_qpn.get()),
            Message::SidrReq(m) => cm.set_service(m.service_id, m.private_data),
            Message::SidrRep(m) => {
                cm.qp = Some(m.qpn.get());
                cm.qkey = Some(Hex32(m.qkey));
                cm.because = sidr_problem(m.status);
            }
            Message::Mra(_)
            | Message::Rtu(_)
            | Message::Drep(_)
            | Message::Lap(_)
            | Message::Apr(_) => {}
        }
        Some(cm)
    }

    fn set_service(&mut self, service_id: u64, private_data: &[u8]) {
        self.service = Some(match ServiceId::parts(service_id) {
            Some((ServiceId::TCP, port)) => format!("TCP:{port}"),
            Some((ServiceId::UDP, port)) => format!("UDP:{port}"),
            Some((ServiceId::IB, port)) => format!("IB:{port}"),
            Some((ServiceId::IPOIB, port)) => format!("IPOIB:{port}"),
            _ => Hex64(service_id).to_string(),
        });
        if ServiceId::has_header(service_id) {
            self.from = RdmaCmHeader::read(private_data).map(|h| (h.source, h.source_port));
        }
    }
}

fn sidr_problem(status: SidrStatus) -> Option<String> {
    Some(match status {
        SidrStatus::Valid => return None,
        SidrStatus::Unsupported => "service id not supported".to_owned(),
        SidrStatus::Rejected => "rejected by the program".to_owned(),
        SidrStatus::NoQp => "no QP available".to_owned(),
        SidrStatus::Redirect => "redirected".to_owned(),
        SidrStatus::UnsupportedVersion => "version not supported".to_owned(),
        SidrStatus::Reserved(code) => format!("reserved status {code}"),
    })
}

impl fmt::Display for Cm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM {}", self.message)?;
        let ids = [("id", self.local_id), ("peer id", self.remote_id)];
        for (name, id) in ids {
            if let Some(id) = id {
                write!(f, ", {name} {id}")?;
            }
        }
        if let Some(service) = &self.service {
            write!(f, ", service {service}")?;
        }
        if let Some((ip, port)) = self.from {
            write!(f, " from {}", std::net::SocketAddr::new(ip, port))?;
        }
        if let Some(qp) = self.qp {
            write!(f, ", QP {qp:#08x}")?;
        }
        if let Some(psn) = self.starting_psn {
            write!(f, ", peer begins at PSN {psn}")?;
        }
        if let Some(mtu) = self.path_mtu {
            write!(f, ", MTU {mtu}")?;
        }
        if let (Some(resources), Some(depth)) = (self.responder_resources, self.initiator_depth) {
            write!(f, ", READs {depth} out {resources} in")?;
        }
        if let Some(retries) = self.retry_count {
            write!(f, ", retries {retries}")?;
        }
        if let Some(retries) = self.rnr_retry_count {
            write!(f, ", RNR retries {retries}")?;
        }
        if let Some(qkey) = self.qkey {
            write!(f, ", QKey {qkey}")?;
        }
        if let Some((vendor, options)) = self.ece {
            write!(f, ", ECE {options} of vendor {vendor}")?;
        }
        if let Some(reason) = self.reason {
            write!(f, ", reason {reason}")?;
        }
        if let Some(because) = &self.because {
            write!(f, " ({because})")?;
        }
        Ok(())
    }
}
