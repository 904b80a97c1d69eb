"""Operations of another library in steps that JAX traces."""
