//! NVMe over Fabrics: command and response capsules of its RDMA transport.
//!
//! Source: NVM Express Base Specification 2.0 (common command format, keyed SGL data block); NVM
//! Express RDMA Transport Specification 1.0 (private data, capsules); compared with Linux
//! `include/linux/nvme.h` and `nvme-rdma.h`.

use crate::command::{Command, Range};
use longhaul_units::RKey;

/// Length of a submission queue entry, and of a command capsule without in-capsule data.
const SQE_LEN: usize = 64;
/// Length of a completion queue entry.
const CQE_LEN: usize = 16;
/// Write, Compare, Dataset Management and Zone Append: commands of the NVM and ZNS sets that
/// transfer data to the controller.
const TO_CONTROLLER: [u8; 4] = [0x01, 0x05, 0x09, 0x7d];
/// Keyed SGL data block: descriptor type 4, with subtype 0 (address) or 15 (invalidate the key at
/// the end).
const KEYED: [u8; 2] = [0x40, 0x4f];

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// True for the private data of a connection request for an I/O queue: record format 0, a queue
/// other than 0, valid sizes.
pub(crate) fn is_io_queue(private_data: &[u8]) -> bool {
    let field = |at| u16_at(private_data, at);
    let (Some(format), Some(queue), Some(receives), Some(sends)) =
        (field(0), field(2), field(4), field(6))
    else {
        return false;
    };
    format == 0 && queue != 0 && receives > 0 && sends > 0
}

/// The command in a SEND of the host.
pub(crate) fn command(payload: &[u8]) -> Option<Command> {
    let sqe: &[u8; SQE_LEN] = payload.first_chunk()?;
    let [opcode, flags, id_low, id_high, ..] = *sqe;
    let mut command = Command::new(u32::from(u16::from_le_bytes([id_low, id_high])));
    let descriptor: &[u8; 16] = sqe[24..].first_chunk()?;
    let [address @ .., l0, l1, l2, k0, k1, k2, k3, kind] = *descriptor;
    if KEYED.contains(&kind) {
        command.push(Range {
            address: u64::from_le_bytes(address),
            rkey: RKey(u32::from_le_bytes([k0, k1, k2, k3])),
            len: u32::from_le_bytes([l0, l1, l2, 0]),
        });
    }
    // The command uses SGLs (PSDT 01), and is not part of a fused pair.
    let is_plain = flags & 0xc3 == 0x40;
    command.is_stable = TO_CONTROLLER.contains(&opcode) && is_plain && payload.len() == SQE_LEN;
    Some(command)
}

/// The identifier of the command that a SEND of the controller completes.
pub(crate) fn completed(payload: &[u8]) -> Option<u32> {
    (payload.len() == CQE_LEN).then_some(())?;
    u16_at(payload, 12).map(u32::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(address: u64, rkey: u32, len: u32) -> [u8; 64] {
        let mut sqe = [0; 64];
        sqe[..4].copy_from_slice(&[0x01, 0x40, 0x34, 0x12]);
        sqe[24..32].copy_from_slice(&address.to_le_bytes());
        sqe[32..35].copy_from_slice(&len.to_le_bytes()[..3]);
        sqe[35..39].copy_from_slice(&rkey.to_le_bytes());
        sqe[39] = 0x4f;
        sqe
    }

    #[test]
    fn a_write_announces_its_keyed_data() {
        let found = command(&write(0x1234_5678_9abc, 0xaabb_ccdd, 0x0001_0000)).unwrap();
        assert_eq!((found.id, found.is_stable), (0x1234, true));
        let range = Range { address: 0x1234_5678_9abc, rkey: RKey(0xaabb_ccdd), len: 0x0001_0000 };
        assert_eq!(found.ranges(), [range]);
    }

    #[test]
    fn what_goes_to_the_host_is_named_but_not_stable() {
        let mut read = write(4096, 7, 4096);
        read[0] = 0x02;
        let mut fused = write(4096, 7, 4096);
        fused[1] = 0x41;
        let mut by_pages = write(4096, 7, 4096);
        by_pages[1] = 0;
        let mut fabrics = write(4096, 7, 4096);
        fabrics[0] = 0x7f;
        for capsule in [read, fused, by_pages, fabrics] {
            let found = command(&capsule).unwrap();
            assert!(!found.is_stable && found.ranges().len() == 1);
        }
    }

    #[test]
    fn data_in_the_capsule_announces_nothing() {
        let mut inline = write(0, 0, 4096);
        inline[39] = 0x01;
        assert!(command(&inline).unwrap().ranges().is_empty());
        assert_eq!(command(&inline[..63]), None);
    }

    #[test]
    fn an_admin_queue_is_none_that_is_read_from() {
        let data = |queue: u8| [0, 0, queue, 0, 128, 0, 127, 0, 0, 0];
        assert!(is_io_queue(&data(1)) && !is_io_queue(&data(0)) && !is_io_queue(&data(1)[..7]));
        assert!(!is_io_queue(&[0; 56]));
    }

    #[test]
    fn a_completion_names_its_command() {
        let mut cqe = [0; 16];
        cqe[12..14].copy_from_slice(&[0x34, 0x12]);
        assert_eq!(completed(&cqe), Some(0x1234));
        assert_eq!(completed(&cqe[..15]), None);
    }
}
