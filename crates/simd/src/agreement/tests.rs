//! Both kernels against a plain count.

use proptest::prelude::*;

use super::*;

fn check(bytes: &[u8], one: usize, other: usize) {
    let agree = |at: usize, from: usize| bytes[at] == bytes[from];
    let count = (0..AHEAD).take_while(|ahead| agree(one + ahead, other + ahead));
    assert_eq!(ahead(bytes, one, other) as usize, count.count());
}

#[test]
fn one_byte_that_differs_anywhere() {
    for differs in 0..AHEAD {
        let mut bytes = [b'a'; 2 * AHEAD];
        bytes[differs] = b'b';
        check(&bytes, 0, AHEAD);
        check(&bytes, AHEAD, 0);
    }
    check(&[b'a'; AHEAD], 0, 0);
}

proptest! {
    #[test]
    fn any_bytes(
        bytes in prop::collection::vec(prop::bool::weighted(0.1), 128),
        one in 0..128 - AHEAD,
        other in 0..128 - AHEAD,
    ) {
        let bytes: Vec<u8> = bytes.into_iter().map(u8::from).collect();
        check(&bytes, one, other);
    }

    #[test]
    fn the_kernels_agree(one in any::<[u8; LANES]>(), mask in any::<[bool; LANES]>()) {
        let mut other = one;
        for (byte, differs) in other.iter_mut().zip(mask) {
            *byte ^= u8::from(differs) << 3;
        }
        prop_assert_eq!(differing(&one, &other), portable::differing(&one, &other));
    }
}

#[test]
#[should_panic(expected = "as many bytes are there")]
fn too_few_bytes_ahead() {
    let _ = ahead(&[0; 100], 0, 69);
}

#[test]
fn any_place_can_be_fetched() {
    for at in [0, 1, 2, usize::MAX] {
        fetch(&[1, 2], at);
    }
}
