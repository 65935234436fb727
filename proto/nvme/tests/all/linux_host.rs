//! What Linux's host sends, as it was seen on the wire.

use crate::hostile_host::{admin_queue, enable, exchange, io_queue, write};
use crate::world::{NAMESPACE, World, config};
use longhaul_nvme::{Command, DataPointer, Status, admin, io};
use longhaul_units::{Duration, Instant};

/// Ranges that Linux always transfers in a Dataset Management command.
const RANGES: usize = 256;

fn deallocate(count: u32, pointer: DataPointer) -> Command {
    let mut command = Command::new(io::DATASET_MANAGEMENT, NAMESPACE);
    command.dwords[..2].copy_from_slice(&[count - 1, 1 << 2]);
    command.descriptor = pointer.write();
    command
}

/// Data of [`deallocate`]: one block at 3, and then bytes without meaning.
fn ranges(len: usize) -> Vec<u8> {
    let mut data = vec![0xa5; len];
    data[..4].fill(0);
    data[4..8].copy_from_slice(&1_u32.to_le_bytes());
    data[8..16].copy_from_slice(&3_u64.to_le_bytes());
    data
}

#[test]
fn a_deallocation_carries_more_data_than_ranges() {
    let mut config = config();
    config.in_capsule = 4096;
    let mut world = World::new(config);
    let queue = io_queue(&mut world);
    let data = ranges(16 * RANGES);
    let inside = DataPointer::InCapsule { offset: 0, len: data.len() as u32 };
    let remote = world.memory.region(5, data.len());
    assert!(world.memory.write(remote, &data));
    let keyed = DataPointer::Keyed { remote, invalidate: false };
    for (pointer, in_capsule) in [(inside, &data[..]), (keyed, &[])] {
        world.blocks.get_mut(&(0, NAMESPACE)).unwrap().fill(7);
        let capsule = [&deallocate(1, pointer).write()[..], in_capsule].concat();
        let completion = exchange(&mut world, queue, &capsule);
        assert_eq!(completion.status, Status::SUCCESS, "{pointer:?}");
        let blocks = &world.blocks[&(0, NAMESPACE)];
        let zeros = |range: std::ops::Range<usize>| blocks[range].iter().all(|byte| *byte == 0);
        assert!(zeros(3 * 512..4 * 512), "{pointer:?}");
        assert_eq!((blocks[3 * 512 - 1], blocks[4 * 512]), (7, 7), "{pointer:?}");
    }
}

#[test]
fn fewer_data_than_ranges_are_refused_and_more_than_a_slot_has_do_not_matter() {
    let mut world = World::new(config());
    let queue = io_queue(&mut world);
    let mut remote = world.memory.region(5, 64 << 10);
    assert!(world.memory.write(remote, &ranges(64 << 10)));
    for (len, count, status) in [
        (16, 2, Status::INVALID_DATA_LENGTH),
        (0, 1, Status::INVALID_DATA_LENGTH),
        (64 << 10, 1, Status::SUCCESS),
        ((1 << 24) - 1, 1, Status::SUCCESS),
    ] {
        remote.len = len;
        let pointer = DataPointer::Keyed { remote, invalidate: false };
        let completion = exchange(&mut world, queue, &deallocate(count, pointer).write());
        assert_eq!(completion.status.code(), status.code(), "{len} bytes, {count} ranges");
    }
}

#[test]
fn force_unit_access_is_passed_on() {
    let mut world = World::new(config());
    let queue = io_queue(&mut world);
    let inside = DataPointer::InCapsule { offset: 0, len: 512 };
    for (forced, bit) in [(false, 0), (true, 1 << 30)] {
        let mut command = write(512, inside);
        command.dwords[2] |= bit;
        let capsule = [&command.write()[..], &[1; 512]].concat();
        assert_eq!(exchange(&mut world, queue, &capsule).status, Status::SUCCESS);
        assert_eq!(world.durable, forced);
        let mut zeroes = Command::new(io::WRITE_ZEROES, NAMESPACE);
        zeroes.dwords[2] = bit;
        assert_eq!(exchange(&mut world, queue, &zeroes.write()).status, Status::SUCCESS);
        assert_eq!(world.durable, forced);
    }
    // Dword 12 of a flush means nothing.
    let mut flush = Command::new(io::FLUSH, NAMESPACE);
    flush.dwords[2] = 1 << 30;
    exchange(&mut world, queue, &flush.write());
    assert!(!world.durable);
}

#[test]
fn a_second_controller_is_announced() {
    let mut world = World::new(config());
    let (queue, _) = admin_queue(&mut world);
    enable(&mut world, queue);
    let remote = world.memory.region(5, 4096);
    let mut identify = Command::new(admin::IDENTIFY, 0);
    identify.dwords[0] = 1;
    identify.descriptor = DataPointer::Keyed { remote, invalidate: false }.write();
    assert_eq!(exchange(&mut world, queue, &identify.write()).status, Status::SUCCESS);
    let data = world.memory.read(remote, 4096).unwrap();
    assert_eq!(data[76] & 1 << 1, 1 << 1, "CMIC: several controllers");
}

/// It skips the Keep Alive of an interval in which another command completed, so that almost two
/// intervals may pass without one.
#[test]
fn a_host_may_be_silent_for_almost_two_intervals() {
    const KEEP_ALIVE: Duration = Duration::from_ms(5000);
    let mut world = World::new(config());
    let (queue, _) = admin_queue(&mut world);
    enable(&mut world, queue);
    let set = |ms: u32| {
        let mut command = Command::new(admin::SET_FEATURES, 0);
        command.dwords[..2].copy_from_slice(&[0x0f, ms]);
        command.write()
    };
    assert_eq!(exchange(&mut world, queue, &set(5000)).status, Status::SUCCESS);
    let began = world.now;
    assert_eq!(world.target.poll_timeout(), Some(began + KEEP_ALIVE));
    world.advance(Duration::from_ms(100));
    let alive = Command::new(admin::KEEP_ALIVE, 0).write();
    assert_eq!(exchange(&mut world, queue, &alive).status, Status::SUCCESS);
    world.advance(Duration::from_ms(4900));
    assert_eq!(world.target.poll_timeout(), Some(began + KEEP_ALIVE.times(2)));
    world.advance(Duration::from_ms(4999));
    assert!(world.is_connected(queue));
    world.advance(Duration::from_ms(1));
    assert!(!world.is_connected(queue));
    // 0 ends the timer.
    let (queue, _) = admin_queue(&mut world);
    enable(&mut world, queue);
    assert_eq!(exchange(&mut world, queue, &set(0)).status, Status::SUCCESS);
    assert_eq!(world.target.poll_timeout(), None::<Instant>);
}
