//! QP1: management datagrams between the wire and the connection manager.

use crate::path::{source_port, vlan};
use crate::{Config, DropReason};
use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Psn, Qpn};
use longhaul_wire::mad::{GSI_QKEY, MAD_LEN, Mad};
use longhaul_wire::{Bth, Deth, Head, MacAddr, Opcode, Packet, Path, PathTemplate};
use longhaul_work::Emit;
use std::net::IpAddr;

const HOP_LIMIT: u8 = 64;

/// Extracts the MAD from a datagram to QP1.
pub(crate) fn receive(
    packet: &Packet<'_>,
    bth: &Bth,
    payload: &Payload<'_>,
) -> Result<Mad, DropReason> {
    let deth = packet.deth().ok_or(DropReason::Mad)?;
    let is_mad =
        bth.opcode == Opcode::UD_SEND_ONLY && deth.qkey == GSI_QKEY && payload.len() == MAD_LEN;
    if !is_mad {
        return Err(DropReason::Mad);
    }
    let mut mad = [0; MAD_LEN];
    payload.copy_to(&mut mad);
    Ok(mad)
}

/// Sends one MAD to a peer's QP1, through the Ethernet address `hop`.
pub(crate) fn send(
    config: &Config,
    hop: MacAddr,
    to: IpAddr,
    mad: &Mad,
    psn: Psn,
    emit: &mut impl Emit,
) {
    let template = PathTemplate::new(&Path {
        source_mac: config.mac,
        destination_mac: hop,
        vlan: vlan(config),
        source_ip: config.addresses.source_for(to),
        destination_ip: to,
        traffic_class: 0,
        hop_limit: HOP_LIMIT,
        flow_label: 0,
        udp_source_port: source_port(config, 0, Qpn::GSI, Qpn::GSI),
    });
    let mut bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, psn);
    // As in every packet of the device: boxes on the path learn the bit from a connection's REP.
    bth.migreq = config.migreq;
    let mut head = Head::begin(&template, &bth);
    head.push_deth(&Deth { qkey: GSI_QKEY, reserved_8: 0, source_qp: Qpn::GSI });
    let pad_len = head.finish(&template, MAD_LEN);
    emit.emit(&Frame {
        head: head.bytes(),
        payload: Payload::Bytes(mad),
        trailer: Trailer::Sealed { pad_len },
    });
}
