//! Frames decoded by zstd, and kernels compared.

use super::*;

fn decoded(coded: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut context = zstd_safe::DCtx::create();
    let mut raw = Vec::with_capacity(length + 1);
    let mut to = zstd_safe::OutBuffer::around(&mut raw);
    let mut from = zstd_safe::InBuffer::around(coded);
    while from.pos() < coded.len() {
        context.decompress_stream(&mut to, &mut from).ok()?;
    }
    context.decompress_stream(&mut to, &mut from).ok()?;
    Some(raw)
}

fn frame() -> ZstdFrame {
    let mut frame = ZstdFrame::new(20).unwrap();
    assert!(frame.begin());
    frame
}

#[test]
fn blocks_refer_to_blocks_before_them() {
    let mut frame = frame();
    let noise = |seed: u64| -> Vec<u8> {
        let mut state = seed;
        let step = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (state >> 56) as u8
        };
        (0..50_000).map(step).collect()
    };
    let (one, two) = (noise(1), noise(2));
    let mut coded = Vec::new();
    frame.push(&one);
    let literals = |_: &[u8], _, found: &mut Vec<_>| found.push(ZstdSequence::last(50_000));
    assert!(frame.code(literals, &mut coded));
    frame.push(&two);
    assert!(frame.code(literals, &mut coded));
    let before = coded.len();
    assert!(before >= 100_000);
    // The first block's middle, in two pieces, then a few of the second's bytes three times.
    frame.push(&one[10_000..30_000]);
    frame.push(&two[..100].repeat(3));
    let found = |history: &[u8], start, found: &mut Vec<_>| {
        assert_eq!((history.len(), start), (120_300, 100_000));
        found.push(ZstdSequence::new(0, 5_000, 90_000));
        found.push(ZstdSequence::new(7, 14_993, 90_000));
        found.push(ZstdSequence::new(0, 100, 70_000));
        found.push(ZstdSequence::new(0, 200, 100));
        found.push(ZstdSequence::last(0));
    };
    assert!(frame.code(found, &mut coded));
    assert!(coded.len() - before < 60, "{}", coded.len() - before);
    let whole = [&one, &two, &one[10_000..30_000], &two[..100].repeat(3)].concat();
    assert!(decoded(&coded, whole.len()) == Some(whole));
}

/// The next numbers of a generator (Knuth's MMIX).
fn draw(state: &mut u64, bound: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(99);
    (*state >> 33) % bound
}

/// Draws a number with up to `bits` bits, small ones as often as large ones.
fn draw_bits(state: &mut u64, bits: u64) -> u64 {
    let width = draw(state, bits + 1);
    draw(state, 1 << width)
}

/// Adds a block to `whole` and returns its sequences. Shapes differ in the frequencies of codes.
fn made(state: &mut u64, shape: u64, whole: &mut Vec<u8>) -> Vec<ZstdSequence> {
    let (start, most) = (whole.len(), MAX_BLOCK as u64);
    let alphabet = [2, 20, 256][shape as usize % 3];
    let add = |state: &mut u64, whole: &mut Vec<u8>, count: u32| {
        (0..count).for_each(|_| whole.push(draw(state, alphabet) as u8));
    };
    let [literal_bits, match_bits, offset_bits] = [
        [0, 2, 6, 17, 1][shape as usize % 5],
        [3, 0, 9, 17][shape as usize % 4],
        [0, 24, 8, 3, 16, 24, 24][shape as usize % 7],
    ];
    let mut sequences = Vec::new();
    let count = [
        1, 2, 3, 15, 16, 17, 31, 32, 33, 127, 128, 129, 1_000, 20_000, 40_000,
    ];
    for _ in 0..count[draw(state, count.len() as u64) as usize] {
        let room = most - (whole.len() - start) as u64;
        let mut literals = draw_bits(state, literal_bits).min(room);
        if whole.is_empty() {
            literals = literals.max(1);
        }
        let length = 3 + draw_bits(state, match_bits);
        if literals + length > room {
            break;
        }
        add(state, whole, literals as u32);
        let offset = 1 + draw_bits(state, offset_bits) as usize % whole.len();
        for _ in 0..length {
            whole.push(whole[whole.len() - offset]);
        }
        sequences.push(ZstdSequence::new(
            literals as u32,
            length as u32,
            offset as u32,
        ));
    }
    let room = most - (whole.len() - start) as u64;
    let last = draw_bits(state, 9).min(room) as u32;
    add(state, whole, last);
    sequences.push(ZstdSequence::last(last));
    sequences
}

fn frames() -> Vec<ZstdFrame> {
    let mut frames = Vec::new();
    for gather in gather::GatherKernel::available() {
        for write in section::SectionKernel::available() {
            let mut frame = ZstdFrame::new(24).unwrap();
            (frame.gather, frame.write) = (gather, write);
            assert!(frame.begin());
            frames.push(frame);
        }
    }
    frames
}

#[test]
fn zstd_decodes_all_matches_and_kernels_agree() {
    let state = &mut 3;
    for round in 0..6 {
        let mut frames = frames();
        let mut coded = vec![Vec::new(); frames.len()];
        let mut whole = Vec::new();
        for block in 0..24 {
            let start = whole.len();
            let sequences = made(state, round * 24 + block, &mut whole);
            for (frame, coded) in frames.iter_mut().zip(&mut coded) {
                frame.push(&whole[start..]);
                let find = |_: &[u8], _, found: &mut Vec<_>| found.extend_from_slice(&sequences);
                assert!(frame.code(find, coded));
            }
        }
        assert!(coded.iter().all(|other| *other == coded[0]));
        assert!(decoded(&coded[0], whole.len()) == Some(whole), "{round}");
    }
}

#[test]
fn every_length_has_its_code() {
    let lengths = (0..300)
        .chain([1, 2, 4, 8, 16, 32].map(|part| part * 1_024))
        .chain([
            511, 513, 1_023, 2_047, 2_049, 4_095, 8_191, 16_383, 32_767, 65_535, 65_536, 65_538,
            65_539,
        ]);
    let state = &mut 9;
    let noise: Vec<u8> = (0..MAX_BLOCK).map(|_| draw(state, 256) as u8).collect();
    let mut frames = frames();
    for length in lengths {
        for (literals, matched) in [(length.max(1), 3), (1, length + 3)] {
            let kept = &noise[..literals as usize];
            // Some more, that the block comes out smaller.
            let matches = vec![kept[kept.len() - 1]; matched as usize + 2_000];
            let whole = [kept, &matches].concat();
            let mut coded = vec![Vec::new(); frames.len()];
            for (frame, coded) in frames.iter_mut().zip(&mut coded) {
                assert!(frame.begin());
                frame.push(&whole);
                let find = |_: &[u8], _, found: &mut Vec<_>| {
                    found.push(ZstdSequence::new(literals, matched, 1));
                    found.push(ZstdSequence::new(0, 2_000, 1));
                    found.push(ZstdSequence::last(0));
                };
                assert!(frame.code(find, coded));
            }
            assert!(coded[0].len() < whole.len() - 1_900);
            assert!(coded.iter().all(|other| *other == coded[0]));
            assert!(
                decoded(&coded[0], whole.len()) == Some(whole),
                "{literals} {matched}"
            );
        }
    }
}

#[test]
fn repeated_offsets_use_repeat_codes() {
    let offsets = [1, 4, 8, 3, 7, 50, 51, 300];
    for mut frame in frames() {
        let state = &mut 5;
        let (mut coded, mut whole) = (Vec::new(), Vec::<u8>::new());
        for block in 0..60 {
            let start = whole.len();
            let mut sequences = Vec::new();
            // Each fourth block has literals only, and stays as it is.
            for _ in 0..if block % 4 == 0 { 0 } else { 200 } {
                let literals = draw(state, 3) as u32;
                (0..literals).for_each(|_| whole.push(draw(state, 256) as u8));
                let offset = offsets[draw(state, 8) as usize];
                let length = 3 + draw(state, 9) as u32;
                (0..length).for_each(|_| whole.push(whole[whole.len() - offset]));
                sequences.push(ZstdSequence::new(literals, length, offset as u32));
            }
            let last = if block % 4 == 0 { 500 } else { 0 };
            (0..last).for_each(|_| whole.push(draw(state, 256) as u8));
            sequences.push(ZstdSequence::last(last));
            frame.push(&whole[start..]);
            let find = |_: &[u8], _, found: &mut Vec<_>| found.extend_from_slice(&sequences);
            assert!(frame.code(find, &mut coded));
        }
        assert!(decoded(&coded, whole.len()) == Some(whole));
    }
}

#[test]
fn incompressible_block_stays_raw() {
    let mut frame = frame();
    let state = &mut 7;
    let noise: Vec<u8> = (0..MAX_BLOCK).map(|_| draw(state, 256) as u8).collect();
    let mut coded = Vec::new();
    for part in [&noise[..], &noise[..1], &noise[..9]] {
        frame.push(part);
        let length = part.len() as u32;
        let find = |_: &[u8], _, found: &mut Vec<_>| found.push(ZstdSequence::last(length));
        assert!(frame.code(find, &mut coded));
    }
    assert_eq!(
        coded.len(),
        FRAME_HEADER + 3 * BLOCK_HEADER + MAX_BLOCK + 10
    );
    let whole = [&noise[..], &noise[..1], &noise[..9]].concat();
    assert!(decoded(&coded, whole.len()) == Some(whole));
}

#[test]
fn new_frame_codes_blocks_of_small_sizes() {
    let mut frame = frame();
    for length in 0..300 {
        assert!(frame.begin());
        let block = vec![7; length];
        frame.push(&block);
        let mut coded = Vec::new();
        let find = |_: &[u8], _, found: &mut Vec<_>| {
            if length > 4 {
                found.push(ZstdSequence::new(1, length as u32 - 2, 1));
                found.push(ZstdSequence::last(1));
            } else {
                found.push(ZstdSequence::last(length as u32));
            }
        };
        assert!(frame.code(find, &mut coded));
        assert!(decoded(&coded, length) == Some(block), "{length}");
    }
}

#[test]
fn a_frame_ends_with_its_window() {
    let mut frame = frame();
    let block = vec![b'x'; MAX_BLOCK];
    let mut coded = Vec::new();
    for _ in 0..8 {
        assert!(frame.has_room(MAX_BLOCK));
        frame.push(&block);
        let find = |_: &[u8], start: usize, found: &mut Vec<_>| {
            if start > 0 {
                found.push(ZstdSequence::new(0, MAX_BLOCK as u32, start as u32));
                found.push(ZstdSequence::last(0));
            } else {
                found.push(ZstdSequence::last(MAX_BLOCK as u32));
            }
        };
        assert!(frame.code(find, &mut coded));
    }
    assert!(!frame.has_room(1));
    assert!(decoded(&coded, 1 << 20) == Some(vec![b'x'; 1 << 20]));
}

#[test]
fn sequences_that_make_no_block_are_refused() {
    let wrong: [&[ZstdSequence]; 8] = [
        &[],
        &[ZstdSequence::last(99)],
        &[ZstdSequence::last(101)],
        &[ZstdSequence::new(10, 90, 5)],
        &[ZstdSequence::new(10, 2, 5), ZstdSequence::last(88)],
        &[ZstdSequence::new(10, 50, 0), ZstdSequence::last(40)],
        &[ZstdSequence::new(10, 50, 11), ZstdSequence::last(40)],
        &[ZstdSequence::new(10, 91, 5), ZstdSequence::last(0)],
    ];
    for sequences in wrong {
        let mut frame = frame();
        frame.push(&[1; 100]);
        let find = |_: &[u8], _, found: &mut Vec<_>| found.extend_from_slice(sequences);
        assert!(!frame.code(find, &mut Vec::new()));
    }
    let mut frame = frame();
    frame.push(&[1; MAX_BLOCK + 1]);
    let find =
        |_: &[u8], _, found: &mut Vec<_>| found.push(ZstdSequence::last(MAX_BLOCK as u32 + 1));
    assert!(!frame.code(find, &mut Vec::new()));
}
