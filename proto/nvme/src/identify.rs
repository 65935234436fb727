//! Identify data structures.

use crate::Nqn;
use crate::fields::{array, put, put_text, text, u16_at, u32_at, u64_at};

/// Length of all Identify data structures.
pub const IDENTIFY_LEN: usize = 4096;

/// Kind of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControllerKind {
    /// Serves namespaces.
    Io,
    /// Serves the discovery log.
    Discovery,
}

/// The fields of Identify Controller that matter over fabrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerData {
    /// Kind.
    pub kind: ControllerKind,
    /// Controller.
    pub id: u16,
    /// Serial number, 20 characters.
    pub serial: String,
    /// Model, 40 characters.
    pub model: String,
    /// Firmware, 8 characters.
    pub firmware: String,
    /// Largest transfer: 4 KiB times 2^this; 0 means no limit.
    pub transfer_max_code: u8,
    /// Subsystem.
    pub subsystem: Nqn,
    /// Largest number of a namespace.
    pub namespaces: u32,
    /// Most outstanding commands of a queue.
    pub commands_max: u16,
    /// Largest in-capsule data of I/O queues in bytes, a multiple of 16.
    pub in_capsule: u32,
    /// Writes need a flush to be kept.
    pub volatile_cache: bool,
}

/// Compare, Dataset Management and Write Zeroes.
const COMMANDS: u16 = 1 | 1 << 2 | 1 << 3;
/// SGLs without alignment, keyed data blocks, offsets into capsules.
const SGLS: u32 = 1 | 1 << 2 | 1 << 20;
/// Asynchronous events that can be configured: namespace attributes.
const EVENTS_IO: u32 = 1 << 8;
/// Discovery log changes.
const EVENTS_DISCOVERY: u32 = 1 << 31;
/// 128-bit host identifiers; any command restarts the keep-alive timer.
const ATTRIBUTES: u32 = 1 | 1 << 6;
/// CMIC: the subsystem may have several controllers.
const SEVERAL_CONTROLLERS: u8 = 1 << 1;
/// NVMe 1.4.
pub(crate) const VERSION: u32 = 0x0001_0400;
/// Asynchronous Event Requests that a controller holds.
pub(crate) const EVENTS_MAX: usize = 4;
/// Granularity of the keep-alive timer, in units of 100 ms.
const KEEP_ALIVE_UNITS: u16 = 1;

impl ControllerData {
    /// Writes the data structure.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut data = vec![0; IDENTIFY_LEN];
        let is_io = self.kind == ControllerKind::Io;
        put_text(&mut data, 4, 20, &self.serial);
        put_text(&mut data, 24, 40, &self.model);
        put_text(&mut data, 64, 8, &self.firmware);
        // Each host has a controller of its own. Without this Linux refuses a second one.
        data[76] = SEVERAL_CONTROLLERS;
        data[77] = self.transfer_max_code;
        put(&mut data, 78, &self.id.to_le_bytes());
        put(&mut data, 80, &VERSION.to_le_bytes());
        let events = if is_io { EVENTS_IO } else { EVENTS_DISCOVERY };
        put(&mut data, 92, &events.to_le_bytes());
        put(&mut data, 96, &ATTRIBUTES.to_le_bytes());
        data[111] = if is_io { 1 } else { 2 };
        data[259] = EVENTS_MAX as u8 - 1;
        // One read-only firmware slot.
        data[260] = 3;
        // Get Log Page with a length beyond 16 bits and an offset; effects log.
        data[261] = 1 << 2 | if is_io { 1 << 1 } else { 0 };
        put(&mut data, 320, &KEEP_ALIVE_UNITS.to_le_bytes());
        data[512..514].copy_from_slice(&[0x66, 0x44]);
        put(&mut data, 514, &self.commands_max.to_le_bytes());
        if is_io {
            put(&mut data, 516, &self.namespaces.to_le_bytes());
            put(&mut data, 520, &COMMANDS.to_le_bytes());
            // A flush of all namespaces is supported.
            data[525] = u8::from(self.volatile_cache) | 3 << 1;
        }
        put(&mut data, 536, &SGLS.to_le_bytes());
        put(&mut data, 540, &self.namespaces.to_le_bytes());
        put(&mut data, 768, self.subsystem.as_str().as_bytes());
        let command_capsule = 4 + if is_io { self.in_capsule / 16 } else { 0 };
        put(&mut data, 1792, &command_capsule.to_le_bytes());
        put(&mut data, 1796, &1_u32.to_le_bytes());
        // One SGL descriptor per command.
        data[1803] = 1;
        data
    }

    /// Parses the data structure of any controller; `None` if it cannot be one of this transport.
    #[must_use]
    pub fn read(data: &[u8]) -> Option<Self> {
        let data: &[u8; IDENTIFY_LEN] = data.try_into().ok()?;
        let subsystem = Nqn::read(&array(data, 768));
        // Before NVMe 1.4 a controller had no type.
        let is_discovery = data[111] == 2 || subsystem.as_ref().is_ok_and(Nqn::is_discovery);
        // In-capsule data that does not follow the command at once is not supported.
        let offset = u16_at(data, 1800);
        let in_capsule = match u32_at(data, 1792) {
            units @ 4.. if offset == 0 && u32_at(data, 536) >> 20 & 1 == 1 => {
                (units - 4).saturating_mul(16)
            }
            4.. => 0,
            // Linux's discovery controllers, without I/O queues, have no size of their capsules.
            _ if is_discovery => 0,
            _ => return None,
        };
        let kind = if is_discovery { ControllerKind::Discovery } else { ControllerKind::Io };
        Some(ControllerData {
            kind,
            id: u16_at(data, 78),
            serial: text(&data[4..24]),
            model: text(&data[24..64]),
            firmware: text(&data[64..72]),
            transfer_max_code: data[77],
            subsystem: subsystem.unwrap_or_else(|_| Nqn::discovery()),
            namespaces: u32_at(data, 516),
            commands_max: u16_at(data, 514),
            in_capsule,
            volatile_cache: data[525] & 1 == 1,
        })
    }
}

/// The fields of Identify Namespace that matter here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceData {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of a block: 2^this.
    pub block_shift: u8,
    /// Bytes of metadata per block; only 0 is supported.
    pub metadata: u16,
    /// Globally unique identifier.
    pub nguid: [u8; 16],
}

impl NamespaceData {
    /// Writes the data structure.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut data = vec![0; IDENTIFY_LEN];
        for at in [0, 8, 16] {
            put(&mut data, at, &self.blocks.to_le_bytes());
        }
        // Several controllers may be attached.
        data[30] = 1;
        // Deallocated blocks read as zeros.
        data[33] = 1 | 1 << 3;
        put(&mut data, 104, &self.nguid);
        put(&mut data, 128, &self.metadata.to_le_bytes());
        data[130] = self.block_shift;
        data
    }

    /// Parses the data structure; `None` if there is no such namespace or the block size is
    /// impossible.
    #[must_use]
    pub fn read(data: &[u8]) -> Option<Self> {
        let data: &[u8; IDENTIFY_LEN] = data.try_into().ok()?;
        let format = 128 + 4 * usize::from(data[26] & 0xf);
        let (blocks, block_shift) = (u64_at(data, 0), data[format + 2]);
        let is_possible = blocks > 0
            && (9..=20).contains(&block_shift)
            && blocks.checked_mul(1 << block_shift).is_some();
        is_possible.then(|| NamespaceData {
            blocks,
            block_shift,
            metadata: u16_at(data, format),
            nguid: array(data, 104),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_structures_are_read_as_written() {
        let controller = ControllerData {
            kind: ControllerKind::Io,
            id: 3,
            serial: "1234".into(),
            model: "Longhaul".into(),
            firmware: "1".into(),
            transfer_max_code: 5,
            subsystem: "nqn.2026-01.org.example:disk".parse().unwrap(),
            namespaces: 2,
            commands_max: 128,
            in_capsule: 4096,
            volatile_cache: true,
        };
        assert_eq!(ControllerData::read(&controller.write()), Some(controller));
        let namespace =
            NamespaceData { blocks: 1000, block_shift: 12, metadata: 0, nguid: [7; 16] };
        assert_eq!(NamespaceData::read(&namespace.write()), Some(namespace));
        for data in [&[0; IDENTIFY_LEN][..], &[0xff; IDENTIFY_LEN], &[1; 100]] {
            assert_eq!(NamespaceData::read(data), None);
        }
        assert_eq!(ControllerData::read(&[0; IDENTIFY_LEN]), None);
    }

    #[test]
    fn a_discovery_controller_needs_no_size_of_io_capsules() {
        for by_type in [true, false] {
            let mut data = [0; IDENTIFY_LEN];
            if by_type {
                data[111] = 2;
            } else {
                put(&mut data, 768, crate::DISCOVERY_NQN.as_bytes());
            }
            let read = ControllerData::read(&data).map(|data| (data.kind, data.in_capsule));
            assert_eq!(read, Some((ControllerKind::Discovery, 0)), "by type: {by_type}");
        }
    }
}
