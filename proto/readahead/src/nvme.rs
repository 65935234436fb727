//! NVMe over Fabrics: what its capsules announce.

use crate::command::{Command, Range};
use longhaul_nvme::{Completion, DataPointer, QueueRequest, SQE_LEN, io};

/// Commands of the NVM and ZNS sets that transfer data to the controller.
const TO_CONTROLLER: [u8; 4] = [io::WRITE, io::COMPARE, io::DATASET_MANAGEMENT, io::ZONE_APPEND];

/// True for the private data of a connection request for an I/O queue.
pub(crate) fn is_io_queue(private_data: &[u8]) -> bool {
    QueueRequest::read(private_data).is_ok_and(|request| request.queue != 0)
}

/// The command in a SEND of the host.
pub(crate) fn command(payload: &[u8]) -> Option<Command> {
    let read = longhaul_nvme::Command::read(payload)?;
    let mut command = Command::new(u32::from(read.id));
    if let Ok(DataPointer::Keyed { remote, .. }) = read.data()
        && remote.len > 0
    {
        command.push(Range { address: remote.address, rkey: remote.rkey, len: remote.len });
    }
    let is_alone = payload.len() == SQE_LEN;
    command.is_stable = TO_CONTROLLER.contains(&read.opcode) && read.is_plain() && is_alone;
    Some(command)
}

/// The identifier of the command that a SEND of the controller completes.
pub(crate) fn completed(payload: &[u8]) -> Option<u32> {
    Completion::read(payload).map(|completion| completion.id.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_units::RKey;

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
