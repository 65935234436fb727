//! A port that encapsulates its frames between two stations of one layer-2 circuit.
//!
//! Each frame gets an additional Ethernet header with the far station's address, this station's
//! address, optionally a VLAN tag, and a configurable EtherType. The circuit therefore carries two
//! addresses and one EtherType, whatever hosts send: for circuits whose provider accepts no others.
//! Both ends need such a port. Other frames from the circuit are counted and dropped.

use crate::{Port, PortCapabilities, PortError, check_length, forward_port};

/// EtherType 1 for local experiments (IEEE 802).
pub const ETHERTYPE_EXPERIMENTAL: u16 = 0x88b5;
/// Minimum EtherType; smaller values are lengths (IEEE 802.3).
pub const ETHERTYPE_MIN: u16 = 0x0600;
/// Highest VLAN (IEEE 802.1Q).
pub const VLAN_MAX: u16 = 4094;

const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
/// The VLAN bits of a tag.
const VLAN_BITS: u16 = 0xfff;

/// Maximum batches of foreign frames that one call skips.
const FOREIGN_BATCHES_MAX: usize = 8;

/// The two ends of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// This station's Ethernet address.
    pub own: [u8; 6],
    /// The far station's Ethernet address.
    pub peer: [u8; 6],
    /// VLAN of the circuit, 1 to [`VLAN_MAX`].
    pub vlan: Option<u16>,
    /// At least [`ETHERTYPE_MIN`], and not the EtherType of a VLAN tag.
    pub ethertype: u16,
}

impl Circuit {
    /// Bytes that encapsulation adds to a frame.
    pub const fn overhead(&self) -> usize {
        if self.vlan.is_some() { 18 } else { 14 }
    }

    fn write_header(&self, out: &mut [u8]) {
        out[..6].copy_from_slice(&self.peer);
        out[6..12].copy_from_slice(&self.own);
        let mut at = 12;
        if let Some(vlan) = self.vlan {
            out[12..14].copy_from_slice(&ETHERTYPE_VLAN);
            out[14..16].copy_from_slice(&vlan.to_be_bytes());
            at = 16;
        }
        out[at..at + 2].copy_from_slice(&self.ethertype.to_be_bytes());
    }

    /// Decapsulates a frame; `None` unless it is from the peer to this station.
    fn inside<'a>(&self, outer: &'a [u8]) -> Option<&'a [u8]> {
        // Read once: a hostile peer may change shared bytes.
        let header: [u8; 18] = match outer.first_chunk::<18>() {
            Some(header) => *header,
            None => return None,
        };
        let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let ethertype = match self.vlan {
            None => word(12),
            Some(vlan) if header[12..14] == ETHERTYPE_VLAN && word(14) & VLAN_BITS == vlan => {
                word(16)
            }
            Some(_) => return None,
        };
        let is_ours =
            header[..6] == self.own && header[6..12] == self.peer && ethertype == self.ethertype;
        outer.get(self.overhead()..).filter(|_| is_ours)
    }
}

/// See the module.
pub struct CircuitPort<P> {
    port: P,
    circuit: Circuit,
    foreign: u64,
}

impl<P: Port> CircuitPort<P> {
    /// Carries frames over `port`.
    pub fn new(port: P, circuit: Circuit) -> Self {
        CircuitPort { port, circuit, foreign: 0 }
    }

    /// The port inside.
    pub fn inner(&self) -> &P {
        &self.port
    }

    /// Received frames from other stations, or of other types.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    fn frame_bytes_max(&self) -> usize {
        self.port.capabilities().frame_bytes_max.saturating_sub(self.circuit.overhead())
    }
}

impl<P: Port> Port for CircuitPort<P> {
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        let (circuit, foreign) = (self.circuit, &mut self.foreign);
        let mut count = 0;
        // A batch of foreign frames alone does not mean that no frame waits.
        for _ in 0..FOREIGN_BATCHES_MAX {
            let came = self.port.receive(max, &mut |outer| match circuit.inside(outer) {
                Some(frame) => {
                    count += 1;
                    each(frame);
                }
                None => *foreign = foreign.wrapping_add(1),
            })?;
            if count > 0 || came == 0 {
                break;
            }
        }
        Ok(count)
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        check_length(len, self.frame_bytes_max())?;
        let (circuit, overhead) = (self.circuit, self.circuit.overhead());
        self.port.transmit(len + overhead, &mut |out| {
            let (header, frame) = out.split_at_mut(overhead);
            circuit.write_header(header);
            fill(frame);
        })
    }

    fn capabilities(&self) -> PortCapabilities {
        PortCapabilities { frame_bytes_max: self.frame_bytes_max(), ..self.port.capabilities() }
    }

    forward_port!(
        |self| self.port => transmit_room, flush, arm, disarm, descriptors, service, link_state
    );
    forward_port!(|self| self.port => set_link, last_disconnect, counters);
    forward_port!(|self| self.port => is_at_rest, hand_over, give_away, take_charge);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback;

    const NEAR: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const FAR: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn circuit(own: [u8; 6], peer: [u8; 6], vlan: Option<u16>) -> Circuit {
        Circuit { own, peer, vlan, ethertype: ETHERTYPE_EXPERIMENTAL }
    }

    fn frames(port: &mut impl Port) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while port.receive(4, &mut |frame| frames.push(frame.to_vec())).unwrap() > 0 {}
        frames
    }

    fn send(port: &mut impl Port, frame: &[u8]) {
        assert!(port.transmit(frame.len(), &mut |out| out.copy_from_slice(frame)).unwrap());
        port.flush().unwrap();
    }

    #[test]
    fn a_frame_comes_out_as_it_went_in_and_crosses_under_one_header() {
        for (vlan, tag) in [(None, &[][..]), (Some(100), &[0x81, 0, 0, 100][..])] {
            let (near, far) = loopback::pair("circuit", 64, 2000).unwrap();
            let mut near = CircuitPort::new(near, circuit(NEAR, FAR, vlan));
            let mut plain = far;
            let frame: Vec<u8> = (0..100).collect();
            send(&mut near, &frame);
            let crossed = frames(&mut plain);
            assert_eq!(crossed, [[&FAR[..], &NEAR, tag, &[0x88, 0xb5], &frame].concat()]);
            assert_eq!(crossed[0].len(), frame.len() + near.circuit.overhead());
            let mut far = CircuitPort::new(plain, circuit(FAR, NEAR, vlan));
            send(&mut near, &frame);
            send(&mut far, &frame);
            assert_eq!((frames(&mut far), frames(&mut near)), (vec![frame.clone()], vec![frame]));
            assert_eq!((near.foreign(), far.foreign()), (0, 0));
        }
    }

    #[test]
    fn what_is_not_the_far_stations_is_dropped_and_counted() {
        for vlan in [None, Some(100)] {
            let (near, mut plain) = loopback::pair("circuit", 64, 2000).unwrap();
            let mut near = CircuitPort::new(near, circuit(NEAR, FAR, vlan));
            let mut right = vec![0; near.circuit.overhead() + 60];
            circuit(FAR, NEAR, vlan).write_header(&mut right);
            let header = near.circuit.overhead();
            // Corrupts each byte of the header, and truncates at each.
            for at in (0..header).filter(|at| vlan.is_none() || *at != 14) {
                let mut wrong = right.clone();
                wrong[at] ^= 1;
                send(&mut plain, &wrong);
            }
            send(&mut plain, &right[..14]);
            let of_header = header as u64 - u64::from(vlan.is_some());
            assert_eq!(frames(&mut near), Vec::<Vec<u8>>::new());
            assert_eq!(near.foreign(), of_header + 1);
            // Frames behind many foreign ones are received.
            for _ in 0..20 {
                send(&mut plain, &[9; 60]);
            }
            send(&mut plain, &right);
            assert_eq!(frames(&mut near).len(), 1);
        }
    }

    #[test]
    fn a_priority_in_the_tag_is_no_matter() {
        let (near, mut plain) = loopback::pair("circuit", 64, 2000).unwrap();
        let mut near = CircuitPort::new(near, circuit(NEAR, FAR, Some(100)));
        let mut tagged = vec![0; 78];
        circuit(FAR, NEAR, Some(100)).write_header(&mut tagged);
        tagged[14] |= 0xe0;
        send(&mut plain, &tagged);
        assert_eq!(frames(&mut near).len(), 1);
    }

    #[test]
    fn the_header_takes_its_share_of_the_longest_frame() {
        let (near, _far) = loopback::pair("circuit", 64, 2000).unwrap();
        let mut near = CircuitPort::new(near, circuit(NEAR, FAR, Some(1)));
        assert_eq!(near.capabilities().frame_bytes_max, 1982);
        let refusal = near.transmit(1983, &mut |_| panic!("refused"));
        assert!(matches!(refusal, Err(PortError::FrameTooLong { len: 1983, max: 1982 })));
    }
}
